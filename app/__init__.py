"""The dashboard.

Read first: `main.py` (the page table), `views/plan.py` (the page that answers), `compute.py` (what is cached).
"""

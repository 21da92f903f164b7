"""Looking inside a replay: what happened when, to whom, and why.

Read first: `recording.py` (who ran in each step), `phases.py` (one request's life), `worst_gaps.py` (what froze whom).
"""

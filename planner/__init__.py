"""From a checked trace and a step log to the flags that keep streams smooth.

Read first: `kernel.py` (scheduler and step-time equation), `replay.py` (one run of it), `search.py` (the choice).
"""

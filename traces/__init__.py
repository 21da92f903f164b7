"""What people upload, read and checked: request traces and step logs.

Read first: `requests.py` and `steps.py` (the two types that leave this package), then `read.py` (the door).
"""

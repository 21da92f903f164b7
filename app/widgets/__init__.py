"""Questions to the user, a room for each subject: each `ask_` shows widgets and returns one checked value.

Read `fields.py` first. Units are converted here.
"""

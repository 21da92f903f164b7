"""Where the pages are."""

PAGES = {
    "trace": "views/trace.py",
    "calibration": "views/calibration.py",
    "plan": "views/plan.py",
    "inspect": "views/inspect.py",
    "export": "views/export.py",
    "method": "views/method.py",
}
"""Scripts of the pages, from the folder of `main.py`."""

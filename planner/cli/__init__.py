"""The `planner` command: the same code as the dashboard, without a browser.

Each command is a room of its own with its options (`add_to`), its work (`run`) and its printing. Read `main` first,
then `options` (what the commands ask alike) and `inputs` (what becomes of it).
"""

"""Proves that a migration changed nothing: runs a program under the original and under this package, and compares.

Both sides begin with the same values, rows and seeds, in their own processes (`side.py`), and record what their
estimators do and what their exports answer (`recorder.py`). NumPy alone compares the records (`comparison.py`). If the
sides differ, both run once more to find the first op of the first step that differs.
"""

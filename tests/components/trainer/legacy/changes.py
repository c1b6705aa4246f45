"""What a test wants to be otherwise in `small.py`, which is imported anew by each execution."""

changes = {}

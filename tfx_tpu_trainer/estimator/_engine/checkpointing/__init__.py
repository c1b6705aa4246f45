"""Writes and restores checkpoints, and explains why one is rejected."""

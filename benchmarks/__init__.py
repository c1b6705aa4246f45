"""Runs the measurements that docs/ reports; neither tested nor installed."""

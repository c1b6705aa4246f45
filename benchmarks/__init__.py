"""Measurements that docs/ reports; not part of the tests, not installed."""

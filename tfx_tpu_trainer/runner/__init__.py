"""Pipelines run on this machine: what shows a run, records it, lists it, and cleans up after it."""

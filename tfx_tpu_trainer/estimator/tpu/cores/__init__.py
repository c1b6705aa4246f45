"""Runs calls on a TPU's cores, emulated on this machine or in a session: traces, plans, feeds and metrics."""

"""On the cores of a TPU, emulated on this machine or in a session: traces, plans, feeds and metrics for each core."""

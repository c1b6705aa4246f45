"""Reports a run: loss, speed, summaries, `host_call`."""

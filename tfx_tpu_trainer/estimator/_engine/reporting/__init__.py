"""What a run says of itself: loss, speed, summaries, `host_call`."""

"""A Flink session cluster on this machine, with Beam's job server and a worker pool."""

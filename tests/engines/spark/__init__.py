"""Spark's embedded master in Beam's job server, with a worker pool."""

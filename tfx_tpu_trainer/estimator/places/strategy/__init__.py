"""Runs calls under a `tf.distribute` strategy: the place, its plans, and a session whose steps the strategy runs."""

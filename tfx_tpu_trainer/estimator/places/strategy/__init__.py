"""Under a `tf.distribute` strategy: its place, the plan of a call, and the session whose steps the strategy makes."""

"""Hooks that need a call for each step."""

import tensorflow as tf

v1 = tf.compat.v1


class SeesEveryStep(v1.train.SessionRunHook):
    """Keeps steps out of loops, as it may look at each."""

    def before_run(self, run_context):
        """May look at the step."""

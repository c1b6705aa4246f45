"""Stops a search as Ctrl-C does, at a step. TFX reloads a tuner_fn's module in each execution, but not this one."""

from __future__ import annotations

import tensorflow as tf

v1 = tf.compat.v1

AT: dict[str, int] = {}
"""Where it stops: `sessions` of training that have begun, and the `step` in the last of them; empty for nowhere."""


class Stop(v1.train.SessionRunHook):
    """Belongs to every session: with a hook that looks at each step, its arithmetic may differ in the last bit."""

    def begin(self):
        AT["sessions"] = AT.get("sessions", 0) - 1
        self._step = v1.train.get_global_step()

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        if AT["sessions"] == 0 and run_values.results >= AT["step"]:
            raise KeyboardInterrupt

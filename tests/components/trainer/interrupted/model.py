"""The small model, which fails for as long as a file is there: where, the file says ("train" or "infer")."""

from __future__ import annotations

import os
import pathlib

import tensorflow as tf

from tests.components.trainer import small_model

v1 = tf.compat.v1

FAILS = "TEST_FAILS_WHILE"
FAILS_AT = 15

params = small_model.params


class _FailHook(v1.train.SessionRunHook):
    def begin(self):
        self._step = v1.train.get_global_step()

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        if run_values.results >= FAILS_AT - 1 and _failing_mode() == "train":
            raise ConnectionError("the machine is taken away")


def _failing_mode():
    path = pathlib.Path(os.environ[FAILS])
    return path.read_text() if path.exists() else None


def model_fn(features, labels, mode, params):
    if mode == "infer" == _failing_mode():
        raise ConnectionError("the machine is taken away")
    spec = small_model.model_fn(features, labels, mode, params)
    return spec._replace(training_hooks=[_FailHook()]) if mode == "train" else spec

"""The original's names or ours, and the small programs that the cases make of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

_FOLDERS = contextlib.ExitStack()
_TRAINED: dict[str, str] = {}


class Stack:
    """One stack while one case runs.

    Attributes:
        est: `tf.estimator`.
        v1: `tf.compat.v1.estimator`.
        tpu: `tf.compat.v1.estimator.tpu`.
        folder: The case's own.
        system: Number of hosts and of each host's cores, of the TPU that the original is told of.
    """

    def __init__(self, est: Any, v1: Any, tpu: Any) -> None:
        self.est, self.v1, self.tpu = est, v1, tpu
        self._open = contextlib.ExitStack()
        self.folder = ""
        self.system = (1, 8)

    def __enter__(self) -> Stack:
        self.folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="words_"))
        self._open.callback(os.environ.pop, "TF_CONFIG", None)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def graph(self) -> None:
        """Makes a graph the default until the case ends."""
        self._open.enter_context(tf.Graph().as_default())

    def old_control_flow(self) -> None:
        """Switches TensorFlow 2's control flow off until the case ends."""
        tf.compat.v1.disable_control_flow_v2()
        self._open.callback(tf.compat.v1.enable_control_flow_v2)

    def tf_config(self, **parts: Any) -> None:
        """Sets TF_CONFIG until the case ends."""
        os.environ["TF_CONFIG"] = json.dumps(parts)

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        """One variable that learns the labels' mean."""
        return self.spec(features, labels, mode)

    def spec(
        self, features: Any, labels: Any, mode: str, cores: bool = False, **fields: Any
    ) -> Any:
        """The model's EstimatorSpec; `fields` are added or take a field's place."""
        return self._fields(self.est.EstimatorSpec, features, labels, mode, fields, cores)

    def tpu_spec(
        self, features: Any, labels: Any, mode: str, cores: bool = True, **fields: Any
    ) -> Any:
        """The model's TPUEstimatorSpec, on cores with the optimizer of cores."""
        return self._fields(self.tpu.TPUEstimatorSpec, features, labels, mode, fields, cores)

    def _fields(
        self,
        make: Any,
        features: Any,
        labels: Any,
        mode: str,
        fields: dict[str, Any],
        cores: bool = False,
    ) -> Any:
        x = features["x"] if isinstance(features, dict) else features
        w = tf.compat.v1.get_variable("w", [], tf.float32, tf.compat.v1.zeros_initializer())
        parts: dict[str, Any] = {"predictions": {"y": tf.cast(x, tf.float32) * w}}
        if mode != "infer":
            error = tf.cast(labels, tf.float32) - parts["predictions"]["y"]
            parts["loss"] = tf.reduce_mean(tf.square(error))
            optimizer: Any = tf.compat.v1.train.GradientDescentOptimizer(0.1)
            if cores:
                optimizer = tf.compat.v1.tpu.CrossShardOptimizer(optimizer)
            step = tf.compat.v1.train.get_or_create_global_step()
            if "train_op" not in fields:
                parts["train_op"] = optimizer.minimize(parts["loss"], global_step=step)
        return make(mode, **(parts | fields))

    def input_fn(self) -> Any:
        """Batches of two rows, endless."""
        rows = ({"x": np.float32([1, 2])}, np.float32([1, 2]))
        return tf.data.Dataset.from_tensors(rows).repeat()

    def short_input_fn(self) -> Any:
        """One batch."""
        return self.input_fn().take(1)

    def estimator(self, model_fn: Any = None, **options: Any) -> Any:
        """An Estimator in the case's folder."""
        if "config" not in options:
            options.setdefault("model_dir", self.folder)
        return self.est.Estimator(model_fn or self.model_fn, **options)

    def returning(self, **fields: Any) -> Any:
        """An Estimator whose spec has these fields."""
        return self.estimator(
            lambda features, labels, mode: self.spec(features, labels, mode, **fields)
        )

    def trained(self, model_fn: Any = None, **options: Any) -> Any:
        """An Estimator with one step behind it, made once for all cases."""
        if "plain" not in _TRAINED:
            _TRAINED["plain"] = _FOLDERS.enter_context(tempfile.TemporaryDirectory(prefix="words_"))
            self.est.Estimator(self.model_fn, _TRAINED["plain"]).train(self.input_fn, steps=1)
        folder = os.path.join(self.folder, "trained")
        shutil.copytree(_TRAINED["plain"], folder)
        return self.est.Estimator(model_fn or self.model_fn, folder, **options)

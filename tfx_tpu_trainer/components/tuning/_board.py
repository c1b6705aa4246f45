"""TensorBoard's HParams plugin: the search space, and what each trial has of it, beside the events of its training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras_tuner
import tensorflow as tf
from tensorboard.plugins.hparams import api, api_pb2
from tensorboard.plugins.hparams import summary as session_summary

_hp = keras_tuner.engine.hyperparameters


def write_search(folder: str, space: keras_tuner.HyperParameters, objective: str) -> None:
    """Writes what is searched, and by which metric."""
    names = {one.name: one for one in space.space}
    hparams = [api.HParam(name, _domain(one)) for name, one in names.items()]
    metrics = [api.Metric(objective, group="eval", display_name=objective)]
    _write(folder, api.hparams_config_pb(hparams=hparams, metrics=metrics))


def write_trial_begin(folder: str, trial_id: str, values: Mapping[str, Any]) -> None:
    """Writes the values of a trial."""
    # None stands for a value that another one leaves without meaning.
    known = {name: value for name, value in values.items() if value is not None}
    _write(folder, api.hparams_pb(known, trial_id=f"trial_{trial_id}"))


def write_trial_end(folder: str, *, failed: bool) -> None:
    """Writes how a trial has ended."""
    status = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
    _write(folder, session_summary.session_end_pb(status))


def _domain(one: Any) -> Any:
    if isinstance(one, _hp.Boolean):
        return api.Discrete([True, False])
    if isinstance(one, _hp.Choice):
        return api.Discrete(list(one.values))
    if isinstance(one, _hp.Int):
        return api.IntInterval(one.min_value, one.max_value)
    if isinstance(one, _hp.Float):
        return api.RealInterval(float(one.min_value), float(one.max_value))
    return api.Discrete([one.default])


def _write(folder: str, summary: Any) -> None:
    # A FileWriter is for graphs; nothing of this one is used.
    with (
        tf.Graph().as_default(),
        tf.compat.v1.summary.FileWriter(folder, filename_suffix=".hparams") as writer,
    ):
        writer.add_summary(summary.SerializeToString())

"""Search spaces for the small model of the component's tests."""

from __future__ import annotations

import tensorflow as tf

from tests.components.trainer import keras_model, small_model
from tests.components.tuning import stopping
from tfx_tpu_trainer.components.tuning import make_tuner_fn

model_fn = small_model.model_fn


def _model_that_stops(features, labels, mode, params):
    spec = small_model.model_fn(features, labels, mode, params)
    if mode == "train":
        spec = spec._replace(training_hooks=[stopping.Stop()])
    return spec


def _two_devices():
    return tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def _model_of_two_optimizers(features, labels, mode, params):
    rate = params["slow_rate"] if params["slow"] else params["fast_rate"]
    return small_model.model_fn(features, labels, mode, {**params, "learning_rate": rate})


def search_space(hp):
    hp.Float("learning_rate", 0.01, 0.3, sampling="log", default=0.05)
    hp.Choice("width", [2, 4, 8], default=4)


def with_a_cliff(hp):
    """Half of the learning rates make the loss NaN."""
    return {"learning_rate": hp.Choice("rate", [0.05, 1e30, 0.1, 1e35, 0.2, 1e38])}


def only_a_cliff(hp):
    return {"learning_rate": hp.Choice("rate", [1e30, 1e35])}


def with_a_slip(hp):
    hp.Float("learnig_rate", 0.01, 0.3)


def conditional(hp):
    """With the default values, slow_rate is never read."""
    hp.Boolean("slow")
    hp.Float("slow_rate", 0.01, 0.1)
    hp.Float("fast_rate", 0.1, 0.3)


def rate_or_none(hp):
    hp.Choice("learning_rate", [0.0, 0.05])


_common = {"model_fn": model_fn, "params": small_model.params}
_lowest_loss = {**_common, "objective": "loss", "direction": "min"}

tuner_fn = make_tuner_fn(**_common, search_space=search_space, objective="accuracy")
cliff_tuner_fn = make_tuner_fn(**_lowest_loss, search_space=with_a_cliff)
only_cliff_tuner_fn = make_tuner_fn(**_lowest_loss, search_space=only_a_cliff)
slip_tuner_fn = make_tuner_fn(**_lowest_loss, search_space=with_a_slip)
conditional_tuner_fn = make_tuner_fn(
    **{**_lowest_loss, "model_fn": _model_of_two_optimizers}, search_space=conditional
)
stopping_tuner_fn = make_tuner_fn(
    **{**_lowest_loss, "model_fn": _model_that_stops}, search_space=search_space
)
keras_tuner_fn = make_tuner_fn(
    build_model=keras_model.build_model,
    params={**keras_model.params, "kind": "subclassed"},
    search_space=rate_or_none,
    objective="loss",
    direction="min",
)
_by_rows = {
    **_common,
    "search_space": search_space,
    "objective": "loss_by_rows",
    "direction": "min",
}
lowest_loss_tuner_fn = make_tuner_fn(**_by_rows)
mirrored_tuner_fn = make_tuner_fn(**_by_rows, strategy=_two_devices)

"""Declares the search space of TFX's Tuner for the taxi model, used if `tune.enabled` is set."""

from __future__ import annotations

from typing import Any

import keras_tuner

from pipelines.taxi.model import model_fn
from tfx_tpu_trainer.components.tuning import make_tuner_fn


def search_space(hp: keras_tuner.HyperParameters) -> dict[str, Any]:
    """Declares the hyperparameters; the defaults are those of config.yaml.

    Args:
        hp: keras-tuner's hyperparameters, for a trial with its values.

    Returns:
        The params of the model_fn for these values.
    """
    layers = hp.Int("layers", 1, 3, default=2)
    widest = hp.Choice("widest_layer", [32, 64, 128], default=64)
    return {
        "learning_rate": hp.Float("learning_rate", 3e-4, 3e-2, sampling="log", default=1e-3),
        "embedding_size": hp.Choice("embedding_size", [4, 8, 16, 32], default=8),
        "hidden_units": [widest // 2**layer for layer in range(layers)],
    }


tuner_fn = make_tuner_fn(model_fn=model_fn, search_space=search_space, objective="auc")

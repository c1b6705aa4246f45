"""Defines the penguin pipeline's config; `config.yaml` next to it has the values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfx_tpu_trainer.workbench.project import Count, PipelineConfig, Rate, Settings


class PenguinModelSettings(Settings):
    """The settings in the `params` of `build_model` and `callbacks` in `pipelines/penguin/model.py`.

    Attributes:
        hidden_units: Units of each hidden layer.
        learning_rate: Adam's learning rate.
        patience: Evaluations without improvement after which training stops.
    """

    hidden_units: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (8, 8)
    learning_rate: Rate = 1e-2
    patience: Count = 2


class Config(PipelineConfig):
    """Config of the penguin pipeline.

    Attributes:
        model: Settings of the Keras model.
        stock: Whether TFX's own Trainer trains with a `run_fn`, and TFX's Evaluator blesses.
    """

    model: PenguinModelSettings = PenguinModelSettings()
    stock: bool = False

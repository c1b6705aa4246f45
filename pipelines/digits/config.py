"""Defines the digits pipeline's config; `config.yaml` next to it has the values."""

from __future__ import annotations

from tfx_tpu_trainer.workbench.project import Count, PipelineConfig, Rate, Settings


class DigitsModelSettings(Settings):
    """The settings in the `params` of `pipelines/digits/model.py`.

    Attributes:
        filters: Channels of the first convolution; the second has twice as many.
        hidden_units: Units of the dense layer.
        learning_rate: Adam's learning rate.
    """

    filters: Count = 16
    hidden_units: Count = 64
    learning_rate: Rate = 1e-3


class Config(PipelineConfig):
    """Config of the digits pipeline.

    Attributes:
        model: Settings of the convolutional model.
    """

    model: DigitsModelSettings = DigitsModelSettings()

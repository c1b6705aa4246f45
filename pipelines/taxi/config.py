"""Defines the taxi pipeline's config; `config.yaml` next to it has the values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfx_tpu_trainer.workbench.project import (
    Count,
    PipelineConfig,
    Rate,
    Settings,
    Strings,
    TuneSettings,
)


class TaxiModelSettings(Settings):
    """The settings in the `params` of `pipelines/taxi/model.py`.

    Attributes:
        embedding_size: Width of each categorical feature's embedding.
        hidden_units: Units of the deep half's layers.
        learning_rate: Adam's peak learning rate.
        decay_steps: Steps over which the learning rate falls to zero along a cosine; all training steps if null.
    """

    embedding_size: Count = 8
    hidden_units: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (64, 32)
    learning_rate: Rate = 1e-3
    decay_steps: Count | None = None


class BulkInferenceSettings(Settings):
    """The settings of BulkInferrer, which predicts with a blessed model.

    Attributes:
        splits: Splits of the raw examples to predict for.
    """

    splits: Annotated[Strings, Field(min_length=1)] = ("eval",)


class Config(PipelineConfig):
    """Config of the taxi pipeline.

    Attributes:
        model: Settings of the wide-and-deep model.
        tune: The search of hyperparameters.
        bulk_inference: Adds a BulkInferrer; null leaves it out.
    """

    model: TaxiModelSettings = TaxiModelSettings()
    tune: TuneSettings = TuneSettings(objective="auc")
    bulk_inference: BulkInferenceSettings | None = None

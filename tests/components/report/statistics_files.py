"""Writes statistics of a test's rows with TFDV, as StatisticsGen does."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import tensorflow_data_validation as tfdv


def write_statistics(folder: pathlib.Path, **splits: Mapping[str, Sequence[Any]]) -> str:
    """Writes an ExampleStatistics artifact.

    Args:
        folder: Where it goes.
        **splits: Column -> values, by the split's name.

    Returns:
        The folder.
    """
    for name, columns in splits.items():
        statistics = tfdv.generate_statistics_from_dataframe(pd.DataFrame(columns), n_jobs=1)
        of_split = folder / f"Split-{name}"
        of_split.mkdir(parents=True)
        (of_split / "FeatureStats.pb").write_bytes(statistics.SerializeToString())
    return str(folder)

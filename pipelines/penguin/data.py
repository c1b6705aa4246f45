"""Finds the penguins' data, next to this file."""

from __future__ import annotations

from pathlib import Path

from pipelines.penguin.config import Config


def prepare_data(config: Config) -> str:
    """Returns the folder of CSV files: the config's, or `rows/` here.

    Args:
        config: The pipeline's config.

    Returns:
        Path of the folder.
    """
    return config.data or str(Path(__file__).with_name("rows"))

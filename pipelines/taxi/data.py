"""Finds the taxi rides in the installed tfx wheel."""

from __future__ import annotations

from importlib import resources

from pipelines.taxi.config import Config


def prepare_data(config: Config) -> str:
    """Returns the folder of CSV files: the config's, or the 15,002 real rides inside the tfx wheel.

    Args:
        config: The pipeline's config.

    Returns:
        Path of the folder.
    """
    if config.data:
        return config.data
    return str(resources.files("tfx") / "examples" / "chicago_taxi_pipeline" / "data" / "simple")

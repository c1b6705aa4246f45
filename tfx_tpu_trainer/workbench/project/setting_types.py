"""The types of settings: what each takes, and what is said of a value that it does not."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

# What ML Metadata and TensorFlow's ops take, and more than anybody means.
_LARGEST = 2**31 - 1
_LARGEST_SEED = 2**63 - 1
_PIPELINE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,127}")


def _pipeline_name(name: str) -> str:
    if not _PIPELINE_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid pipeline name; give up to 128 lower-case letters, digits, '_' "
            "and '-', starting with a letter"
        )
    return name


def _folder(path: str) -> str:
    if not path.strip() or "\0" in path:
        raise ValueError(
            f"{path!r} is not a path; give a folder, locally or in a bucket, such as "
            "gs://bucket/taxi"
        )
    return path


def _import_path(path: str) -> str:
    if path and not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{path!r} is not an import path; give one such as pipelines.taxi.model")
    return path


Count = Annotated[int, Field(gt=0, le=_LARGEST)]
"""A whole number above 0: steps, rows, units."""

Rate = Annotated[float, Field(gt=0)]
"""A number above 0."""

Seed = Annotated[int, Field(ge=-_LARGEST_SEED, le=_LARGEST_SEED)]
"""A seed of random numbers."""

Text = Annotated[str, Field(min_length=1)]
"""A string that is not empty."""

PipelineName = Annotated[str, AfterValidator(_pipeline_name)]
"""A name that ML Metadata, folders and clusters accept."""

Folder = Annotated[str, AfterValidator(_folder)]
"""A path on this machine, or in a bucket."""

ImportPath = Annotated[str, AfterValidator(_import_path)]
"""An import path, or an empty string."""

Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A YAML list as a tuple: strict models refuse a list for a tuple, and a frozen config wants tuples."""

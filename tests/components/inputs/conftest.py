"""Small Transform outputs, made by Transform itself."""

from __future__ import annotations

import pytest
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils

from tests.components.inputs.raw_rows import (
    RAW_SPEC,
    ROWS,
    SINGLE_VALUED,
    instances,
    preprocessing_fn,
)


def raw_metadata() -> tft.DatasetMetadata:
    """The raw schema, as SchemaGen infers it: of some features it knows that they have one value."""
    schema = schema_utils.schema_from_feature_spec(RAW_SPEC)
    for feature in schema.feature:
        if feature.name in SINGLE_VALUED:
            feature.value_count.min = feature.value_count.max = 1
    return dataset_metadata.DatasetMetadata(schema)


# The Transform output that the tfx wheel carries is one of tf1, and other tests read that in `make test`.
@pytest.fixture(scope="session", params=[pytest.param("tf1", marks=pytest.mark.sweep), "tf2"])
def transform_graph(request, tmp_path_factory) -> str:
    """A folder of Transform for `preprocessing_fn`, once for each format of its graph."""
    folder = tmp_path_factory.mktemp(f"transform_{request.param}")
    temporary = str(folder / "tmp")
    with tft_beam.Context(temp_dir=temporary, force_tf_compat_v1=request.param == "tf1"):
        transform_fn = (instances(ROWS), raw_metadata()) | tft_beam.AnalyzeDataset(preprocessing_fn)
        transform_fn | tft_beam.WriteTransformFn(str(folder / "graph"))
    metadata_io.write_metadata(raw_metadata(), str(folder / "graph" / "metadata"))
    return str(folder / "graph")

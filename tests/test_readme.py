"""The README's listings run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from tests.tfx_importers import importers
from tfx_tpu_trainer.serving import load_serving

pytestmark = pytest.mark.e2e

README = Path(__file__).parent.parent / "README.md"


def _listings() -> tuple[str, str]:
    """The two Python listings: the pipeline's part, and model.py."""
    part, model = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return part, model


def test_the_listings_train_bless_and_push(tmp_path, monkeypatch):
    part, model = _listings()
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(model, encoding="utf-8")
    nodes = importers()
    inputs = {name: node.outputs["result"] for name, node in nodes.items()}
    # Better than chance. The listing names a seed: from other first weights, 1,000 steps lead to 0.35 to 0.66.
    threshold = tfma.MetricThreshold(
        value_threshold=tfma.GenericValueThreshold(lower_bound={"value": 0.5})
    )
    # What the listing expects to be there: the upstream components, thresholds and a destination.
    names = {
        "transform": SimpleNamespace(
            outputs={
                "transformed_examples": inputs["examples"],
                "transform_graph": inputs["transform_graph"],
            }
        ),
        "schema_gen": SimpleNamespace(outputs={"schema": inputs["schema"]}),
        "eval_config": tfma.EvalConfig(
            metrics_specs=[tfma.MetricsSpec(thresholds={"accuracy": threshold})]
        ),
        "destination": tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(tmp_path / "out"))
        ),
    }
    exec(compile(part, str(README), "exec"), names)
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name="readme",
            pipeline_root=str(tmp_path / "root"),
            components=[
                *nodes.values(),
                *(names[name] for name in ("trainer", "gate", "pusher")),
            ],
            metadata_connection_config=(
                tfx.orchestration.metadata.sqlite_metadata_connection_config(
                    str(tmp_path / "metadata.sqlite")
                )
            ),
        )
    )
    (pushed,) = (tmp_path / "out").iterdir()
    assert "serving_default" in load_serving(str(pushed)).signatures

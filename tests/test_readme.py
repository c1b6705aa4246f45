"""The README's listings run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from tests.listings import README, listings_of
from tests.tfx_importers import importers
from tfx_tpu_trainer.serving import load_serving

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[1]


def test_the_program_trains_on_eight_emulated_cores(tmp_path):
    program, _, _ = listings_of(README)
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    # NumPy 2 prints np.float32(...).
    loss = re.search(r"'loss': \D*([-+.e\d]+)", ended.stdout)
    # The label is the sum that the weights are to become.
    assert loss is not None and float(loss[1]) < 1e-3, ended.stdout
    assert (tmp_path / "runs" / "sums" / "checkpoint").exists()


def test_the_listings_train_bless_and_push(tmp_path, monkeypatch):
    _, part, model = listings_of(README)
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

"""Tests listing models by metrics from a real ML Metadata store, and finding the last blessed one by its pointer."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import shutil
from pathlib import Path

import ml_metadata as mlmd
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from tests.bad_input import case, row
from tfx_tpu_trainer.components.evaluation import EvalMetrics, metric_properties
from tfx_tpu_trainer.components.evaluation._models import (
    BlessedModel,
    blessings,
    last_blessed,
    list_models,
    point_to,
)

_KINDS = {int: "int_value", float: "double_value", str: "string_value"}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "metadata.sqlite")


@pytest.fixture
def add(path):
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = path
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    store = mlmd.MetadataStore(config)
    model_type = store.put_artifact_type(pb.ArtifactType(name="Model"))
    context_types = {
        name: store.put_context_type(pb.ContextType(name=name))
        for name in ("pipeline", "pipeline_run")
    }

    def add(uri, metrics=None, *, pipeline="taxi", runs=("one",), step=5):
        artifact = pb.Artifact(type_id=model_type, uri=uri)
        if metrics:
            properties = metric_properties(EvalMetrics(metrics, global_step=step, num_examples=3))
            for name, value in properties.items():
                setattr(artifact.custom_properties[name], _KINDS[type(value)], value)
        (artifact_id,) = store.put_artifacts([artifact])
        names = [("pipeline", pipeline), *(("pipeline_run", run) for run in runs)]
        for kind, name in names:
            known = store.get_context_by_type_and_name(kind, name)
            context = pb.Context(type_id=context_types[kind], name=name)
            (context_id,) = [known.id] if known else store.put_contexts([context])
            store.put_attributions_and_associations(
                [pb.Attribution(artifact_id=artifact_id, context_id=context_id)], []
            )
        return artifact_id

    add.store = store
    return add


def _uris(*args, **kwargs):
    return [model.uri for model in list_models(*args, **kwargs)]


def test_the_best_first(add, path):
    values = {"/a": 0.5, "/b": math.nan, "/c": 0.75, "/d": -math.inf}
    for uri, value in values.items():
        add(uri, {"accuracy": value})
    assert _uris(path, metric="accuracy") == ["/c", "/a", "/d", "/b"]
    assert _uris(path, metric="accuracy", mode="min") == ["/d", "/a", "/c", "/b"]
    assert _uris(add.store, metric="accuracy", limit=1) == ["/c"]


def test_only_models_that_have_it(add, path):
    add("/failed")
    add("/a", {"loss": 0.5})
    add("/b", {"accuracy": 0.5}, pipeline="digits")
    assert _uris(path, metric="accuracy") == ["/b"]
    assert _uris(path, metric="accuracy", pipeline="taxi") == []
    assert _uris(path, metric="loss", pipeline="taxi") == ["/a"]
    assert _uris(path, metric="auc") == []


def test_what_is_told(add, path):
    artifact_id = add("/a", {"accuracy": 0.5, "loss": 0.25}, runs=("one", "two"))
    (model,) = list_models(path, metric="loss")
    assert (model.artifact_id, model.pipeline, model.runs) == (artifact_id, "taxi", ("one", "two"))
    assert dict(model.metrics) == {"accuracy": 0.5, "loss": 0.25}
    assert (model.global_step, model.num_examples, model.checkpoint) == (5, 3, None)
    assert model.created > 1e9


def test_refused(path, tmp_path):
    with pytest.raises(ValueError, match="is not an ML Metadata database"):
        list_models(path, metric="loss")
    with pytest.raises(ValueError, match="mode='best' is not valid"):
        list_models(path, metric="loss", mode="best")


def test_a_store_without_models(path):
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = path
    assert list_models(mlmd.MetadataStore(config), metric="loss") == []


@pytest.fixture
def pointer(tmp_path):
    return str(tmp_path / "taxi" / "blessed.json")


def _model(folder, accuracy, **more):
    uri = folder / f"model-{accuracy}"
    uri.mkdir()
    (uri / "eval_metrics.json").write_text("{}")
    overall = {"accuracy": accuracy, "auc": math.nan}
    return BlessedModel.now(str(uri), EvalMetrics(overall=overall, global_step=1), **more)


def test_before_the_first_blessing_there_is_none(pointer):
    assert last_blessed(pointer) is None


def test_the_last_blessing_wins_and_all_are_in_the_history(tmp_path, pointer):
    first, second = _model(tmp_path, 0.5, training="a1"), _model(tmp_path, 0.75)
    point_to(pointer, first)
    found = last_blessed(pointer)
    assert (found.uri, found.time, found.training) == (first.uri, first.time, "a1")
    assert found.metrics["accuracy"] == 0.5 and math.isnan(found.metrics["auc"])
    point_to(pointer, second)
    assert last_blessed(pointer).uri == second.uri
    written = [json.loads(Path(path).read_text()) for path in blessings(pointer)]
    assert [each["uri"] for each in written] == [first.uri, second.uri]
    assert json.loads(Path(pointer).read_text()) == written[-1]


def test_on_an_object_store(tmp_path):
    model = _model(tmp_path, 0.5)
    point_to("ram://blessed/taxi/blessed.json", model)
    assert last_blessed("ram://blessed/taxi/blessed.json").uri == model.uri


def _bless_often(pointer, uri):
    for step in range(5):
        metrics = EvalMetrics(overall={"accuracy": 0.5}, global_step=step)
        point_to(pointer, BlessedModel.now(uri, metrics))


def test_two_runs_that_bless_at_once_leave_a_whole_pointer_and_both_histories(tmp_path, pointer):
    uris = [_model(tmp_path, accuracy).uri for accuracy in (0.5, 0.75)]
    # Forked, which spares them the imports.
    processes = multiprocessing.get_context("fork")
    writers = [processes.Process(target=_bless_often, args=(pointer, uri)) for uri in uris]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        found = last_blessed(pointer)
        reads += found is not None
        assert found is None or found.uri in uris
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads
    written = [json.loads(Path(path).read_text())["uri"] for path in blessings(pointer)]
    assert sorted(written) == sorted(uris * 5)


@pytest.mark.parametrize(
    "harm",
    [
        lambda pointer, uri: Path(pointer).write_text('{"version": 1, "uri'),
        lambda pointer, uri: Path(pointer).write_text("[]"),
        lambda pointer, uri: shutil.rmtree(uri),
    ],
    ids=["half", "a list", "the model is gone"],
)
def test_the_history_stands_in_for_a_pointer_that_leads_nowhere(tmp_path, pointer, harm, caplog):
    first, second = _model(tmp_path, 0.5), _model(tmp_path, 0.75)
    point_to(pointer, first)
    point_to(pointer, second)
    harm(pointer, second.uri)
    expected = second.uri if os.path.isdir(second.uri) else first.uri
    with caplog.at_level(logging.WARNING):
        assert last_blessed(pointer).uri == expected
    (line,) = caplog.messages
    assert pointer in line and line.endswith(f": {expected}")


@pytest.mark.parametrize(
    "content",
    [
        case(
            "eval_metrics",
            f"a `blessed.json` {what}, and no history",
            "blessed.json to the last blessed model is damaged",
            says,
            "names no other existing model; remove",
            "to start without a baseline",
            values=content,
        )
        for what, content, says in (
            ("that is half written", b'{"version": 1, "uri', "it is not valid JSON"),
            ("that is not UTF-8", b"\xff\xfe", "it is not valid JSON"),
            ("without the model", b'{"version": 1}', "it has no 'uri'"),
            (
                "with a number as its uri",
                b'{"version": 1, "uri": 5, "time": "", "training": null}',
                "its uri is 5",
            ),
            (
                "with a metric that is not a number",
                b'{"version": 1, "uri": "/x", "time": "", "training": null, "metrics": {"auc": "high"}}',
                "metric 'auc': 'high' is not a number",
            ),
            ("of a newer version", b'{"version": 2}', "its version is 2"),
        )
    ],
)
def test_a_damaged_pointer_is_told(pointer, content, refused):
    os.makedirs(os.path.dirname(pointer))
    Path(pointer).write_bytes(content)
    with refused(ValueError):
        last_blessed(pointer)


@row(
    "eval_metrics",
    "a `blessed.json` whose model was removed, as were all in its history",
    "names the model",
    "which no longer exists, and",
    "remove",
)
def test_a_pointer_to_a_removed_model_is_told(tmp_path, pointer, refused):
    model = _model(tmp_path, 0.5)
    point_to(pointer, model)
    shutil.rmtree(model.uri)
    with refused(ValueError):
        last_blessed(pointer)

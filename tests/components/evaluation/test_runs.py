"""Models listed by their metrics, from a real ML Metadata store."""

from __future__ import annotations

import math

import ml_metadata as mlmd
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from tfx_tpu_trainer.components.evaluation import EvalMetrics, metric_properties
from tfx_tpu_trainer.components.evaluation._runs import list_models

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

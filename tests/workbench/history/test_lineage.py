"""Where statistics and models come from, in a real SQLite metadata file."""

from __future__ import annotations

import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from tfx_tpu_trainer.workbench.history.lineage import Lineage
from tfx_tpu_trainer.workbench.project import metadata

_IN, _OUT = mlmd.Event.INPUT, mlmd.Event.OUTPUT


class _Store:
    """Writes executions with what they read and made."""

    def __init__(self, path):
        self.store = metadata.open_store(path, read_only=False)
        self._component = self.store.put_execution_type(mlmd.ExecutionType(name="component"))
        self._run = self.store.put_context_type(mlmd.ContextType(name=metadata.RUN_CONTEXT))

    def artifact(self, kind, uri):
        type_id = self.store.put_artifact_type(mlmd.ArtifactType(name=kind))
        (number,) = self.store.put_artifacts([mlmd.Artifact(type_id=type_id, uri=uri)])
        (found,) = self.store.get_artifacts_by_id([number])
        return found

    def execution(self, run, *, reads=(), makes=()):
        execution = mlmd.Execution(type_id=self._component)
        context = mlmd.Context(type_id=self._run, name=run)
        pairs = [
            (artifact, mlmd.Event(type=kind))
            for kind, artifacts in ((_IN, reads), (_OUT, makes))
            for artifact in artifacts
        ]
        self.store.put_execution(execution, pairs, [context], reuse_context_if_already_exist=True)


@pytest.fixture
def store(tmp_path):
    return _Store(tmp_path / "metadata.sqlite")


def _run(store, name, *, given=False, statistics=True):
    """Writes the executions of a pipeline; returns the model."""
    raw, transformed = store.artifact("Examples", f"{name}/raw"), store.artifact("Examples", name)
    found = store.artifact("ExampleStatistics", f"{name}/statistics")
    model = store.artifact("Model", f"{name}/model")
    store.execution(name, makes=[raw])
    if statistics:
        store.execution(name, reads=[raw], makes=[found])
    store.execution(name, reads=[raw], makes=[transformed])
    store.execution(name, reads=[transformed, *([found] if given else [])], makes=[model])
    return model


@pytest.mark.parametrize("given", [True, False])
def test_statistics_are_those_of_the_examples_that_the_model_was_trained_on(store, given):
    models = [_run(store, name, given=given) for name in ("monday", "tuesday")]
    lineage = Lineage(store.store)
    assert [lineage.statistics_of(model) for model in models] == [
        "monday/statistics",
        "tuesday/statistics",
    ]
    assert [lineage.run_of(model) for model in models] == ["monday", "tuesday"]


def test_where_nobody_has_measured_the_examples_there_are_none(store):
    model = _run(store, "monday", statistics=False)
    lineage = Lineage(store.store)
    assert lineage.statistics_of(model) is None
    assert lineage.statistics_of(None) is None
    assert lineage.run_of(store.artifact("Model", "elsewhere")) is None

"""Where an artifact comes from, as ML Metadata's events tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import ml_metadata
from ml_metadata.proto import metadata_store_pb2

from tfx_tpu_trainer.workbench.project import metadata

_EVENT = metadata_store_pb2.Event
_IN = (_EVENT.INPUT, _EVENT.DECLARED_INPUT)
_OUT = (_EVENT.OUTPUT, _EVENT.DECLARED_OUTPUT)
_EXAMPLES, _STATISTICS = "Examples", "ExampleStatistics"


class Lineage:
    """Walks from artifacts to the executions that made or read them, and to those executions' artifacts."""

    def __init__(self, store: ml_metadata.MetadataStore) -> None:
        """Reads a store.

        Args:
            store: The store.
        """
        self._store = store

    def run_of(self, artifact: Any) -> str | None:
        """Returns the name of the pipeline run that has made an artifact; `None` where none has."""
        for execution in self._executions([artifact], _OUT):
            for context in self._store.get_contexts_by_execution(execution):
                if context.type == metadata.RUN_CONTEXT:
                    return context.name
        return None

    def statistics_of(self, artifact: Any) -> str | None:
        """Finds the statistics of the raw examples that a model was trained on.

        They are what the trainer was given as `statistics`; without that, what StatisticsGen has made of its
        `raw_examples`, or of what Transform has made its `examples` of.

        Args:
            artifact: An output of the trainer; `None` has no statistics.

        Returns:
            The folder of the newest of them; `None` where there are none.
        """
        if artifact is None:
            return None
        makers = self._executions([artifact], _OUT)
        inputs = self._artifacts(makers, _IN)
        given = _of_type(inputs, _STATISTICS)
        if not given:
            examples = _of_type(inputs, _EXAMPLES)
            before = _of_type(
                self._artifacts(self._executions(examples, _OUT), _IN),
                _EXAMPLES,
            )
            readers = self._executions([*examples, *before], _IN)
            given = _of_type(self._artifacts(readers, _OUT), _STATISTICS)
        newest = max(given, key=lambda each: each.id, default=None)
        return newest and newest.uri

    def _executions(self, artifacts: Iterable[Any], kinds: Collection[int]) -> list[int]:
        ids = [artifact.id for artifact in artifacts]
        events = self._store.get_events_by_artifact_ids(ids) if ids else []
        return sorted({event.execution_id for event in events if event.type in kinds})

    def _artifacts(self, executions: Collection[int], kinds: Collection[int]) -> list[Any]:
        events = self._store.get_events_by_execution_ids(executions) if executions else []
        ids = sorted({event.artifact_id for event in events if event.type in kinds})
        return list(self._store.get_artifacts_by_id(ids)) if ids else []


def _of_type(artifacts: Iterable[Any], name: str) -> list[Any]:
    return [artifact for artifact in artifacts if artifact.type == name]

"""Embeddings under a `tf.distribute` strategy: which tables its hardware has, and the call around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.places.place import Call
from tfx_tpu_trainer.estimator.places.strategy.feed import is_of_tpus, spans_processes
from tfx_tpu_trainer.estimator.places.strategy.tables import HostTables, StrategyTables
from tfx_tpu_trainer.estimator.tpu.embedding.id_features import IdFeatures
from tfx_tpu_trainer.estimator.tpu.embedding.plan import plan_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec
from tfx_tpu_trainer.estimator.tpu.embedding.tpu_tables import (
    EmbeddingCoreTables,
    SparseCoreTables,
    TPUTables,
)
from tfx_tpu_trainer.estimator.tpu.embedding.trace import EmbeddedModel

_Feature = tf.tpu.experimental.HardwareFeature.EmbeddingFeature

_TABLES: Mapping[Any, type[TPUTables]] = {
    _Feature.V1: EmbeddingCoreTables,
    _Feature.V2: SparseCoreTables,
}


class EmbeddedUnderStrategy:
    """A call whose ids are looked up beside the replicas of a strategy.

    On TPUs their own embedding hardware does that: the embedding cores of v2, v3 and v4, the
    SparseCores of v5p and v6e. With replicas on other devices the host does.

    Attributes:
        call: The call, its functions wrapped.
    """

    def __init__(
        self, spec: EmbeddingConfigSpec, call: Call, strategy: tf.distribute.Strategy
    ) -> None:
        """Wraps a call."""
        self._plan = plan_embeddings(spec)
        self._strategy = strategy
        self._is_training = call.mode == ModeKeys.TRAIN
        self._spec = spec
        self._tables_of_tpu = self._choose_tables()
        if self._tables_of_tpu is not None:
            self._tables_of_tpu.check(self._plan, strategy)
        ids = IdFeatures(self._plan, padded=False)
        self._model = EmbeddedModel(self._plan, ids, call.mode, call.call_model_fn)

        def call_input_fn(
            added: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, /
        ) -> Any:
            returned = call.call_input_fn(added, input_context)
            # The feed says what it needs instead.
            return (
                ids.prepare_input(returned) if isinstance(returned, tf.data.Dataset) else returned
            )

        self.call = dataclasses.replace(
            call, call_input_fn=call_input_fn, call_model_fn=self._model
        )

    def update(self) -> HostFunction | None:
        """Returns what trains the tables, once the call was traced."""
        return None if self._model.lookups is None else self._model.lookups.update

    def make_tables(self) -> StrategyTables | None:
        """Makes the tables in the graph of the trace; `None` where there are none."""
        lookups, replicas = self._model.lookups, self._strategy.num_replicas_in_sync
        if lookups is None:
            return None
        if self._tables_of_tpu is None:
            return HostTables(lookups, replicas=replicas)
        return self._tables_of_tpu(
            self._plan,
            lookups,
            self._strategy,
            is_training=self._is_training,
            spec=self._spec,
        )

    def _choose_tables(self) -> type[TPUTables] | None:
        strategy = self._strategy
        named = f"{type(strategy).__name__} ({strategy.num_replicas_in_sync} replicas)"
        if spans_processes(strategy):
            raise ValueError(
                f"embedding_config_spec can't be used under {named}, which has replicas in other "
                "processes: each would have separate tables. Use a strategy of one process, or "
                "use_tpu=False, where the columns are ordinary embedding columns."
            )
        if not is_of_tpus(strategy):
            return None
        feature = strategy.extended.tpu_hardware_feature.embedding_feature
        if feature not in _TABLES:
            raise ValueError(
                f"embedding_config_spec can't be used under {named}: its TPU has neither embedding "
                "cores nor SparseCores, as those of v5e. Use a v4, v5p or v6e, or use_tpu=False, "
                "where the columns are ordinary embedding columns, whose tables are variables of "
                "the model."
            )
        return _TABLES[feature]

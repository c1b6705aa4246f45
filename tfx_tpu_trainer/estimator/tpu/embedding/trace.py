"""Looks up ids in embedding tables before model_fn, on cores and for the replicas of a strategy."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tf_private import replace_consumers_input
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.places.place import Call, Lookups
from tfx_tpu_trainer.estimator.places.strategy.feed import is_of_tpus, spans_processes
from tfx_tpu_trainer.estimator.places.strategy.tables import HostTables, StrategyTables
from tfx_tpu_trainer.estimator.tpu.cores.run import CoreRun
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreTrace, trace_on_cores
from tfx_tpu_trainer.estimator.tpu.embedding import id_features, tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.id_features import GradientTap, IdFeatures
from tfx_tpu_trainer.estimator.tpu.embedding.spec import (
    EmbeddingConfigSpec,
    EmbeddingPlan,
    plan_embeddings,
    refuse_embeddings,
)
from tfx_tpu_trainer.estimator.tpu.embedding.table_update import make_table_update
from tfx_tpu_trainer.estimator.tpu.embedding.tpu_tables import (
    EmbeddingCoreTables,
    SparseCoreTables,
    TPUTables,
)

v1 = tf.compat.v1

_Feature = tf.tpu.experimental.HardwareFeature.EmbeddingFeature

_TABLES: Mapping[Any, type[TPUTables]] = {
    _Feature.V1: EmbeddingCoreTables,
    _Feature.V2: SparseCoreTables,
}


def trace_with_embeddings(spec: EmbeddingConfigSpec, run: CoreRun, call: Call) -> CoreTrace:
    """Traces a call like `trace_on_cores`, with lookups between input_fn and model_fn."""
    if run.system is not None:
        refuse_embeddings(spec, "in a TPU's session")
    plan = plan_embeddings(spec)
    ids = IdFeatures(plan, padded=run.mode == ModeKeys.PREDICT)
    model = EmbeddedModel(plan, ids, run.mode, call.call_model_fn)

    def call_input_fn(
        added: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, /
    ) -> Any:
        return ids.prepare_input(call.call_input_fn(added, input_context))

    embedded = dataclasses.replace(call, call_model_fn=model)
    if run.mode == ModeKeys.TRAIN:
        # Not in the dataset: a position goes on with the dataset that it was saved with, and the host's has no
        # encoded ids.
        trace = trace_on_cores(run, embedded, prepare=ids.prepare_input)
    else:
        trace = trace_on_cores(run, dataclasses.replace(embedded, call_input_fn=call_input_fn))
    lookups = model.lookups
    update = None if lookups is None else lookups.update
    template = dataclasses.replace(trace.template, table_update=update)
    return dataclasses.replace(trace, template=template, embeddings=lookups)


class EmbeddedModel:
    """A model_fn with lookups before it, for one call of train, evaluate or predict."""

    # The model is built on placeholders, since its columns define the names of the tables' variables. Then lookups
    # replace the placeholders, so a copy of the model looks up its own core's ids. After the call, `lookups` has the
    # tensors between model and tables; `None` without tables.

    def __init__(
        self,
        plan: EmbeddingPlan,
        ids: IdFeatures,
        mode: str,
        call_model_fn: Callable[[Any, Any, Any], Any],
    ) -> None:
        """Wraps a model_fn."""
        self._plan = plan
        self._mode = mode
        self._call_model_fn = call_model_fn
        self._ids = ids
        self.lookups: Lookups | None = None

    def __call__(self, features: Any, labels: Any, added: Mapping[str, Any], /) -> Any:
        """Calls model_fn and connects it with its tables."""
        if not self._plan.tables:
            return self._call_model_fn(features, labels, added)
        # The tables must be made after the model, whose scopes define their names, yet the model needs
        # their rows. So it is built on placeholders (stand-ins), and once its columns have defined the
        # variables' names, each reader of a stand-in gets the lookup in its place.
        # model_fn("word" = stand-in [rows, 16]) becomes model_fn("word" = rows of the table "emb/embedding_weights").
        # The model's optimizer differentiates up to the stand-in: the tap records that gradient, and
        # the table's follows by the chain rule (`_table_gradients`). Invariant: no
        # table exists while the model is built, so the model's optimizer can't train one.
        tap = GradientTap() if self._mode == ModeKeys.TRAIN else None
        # Read before the model increases it, so it is 0 in the first step.
        step = tf.reshape(v1.train.get_global_step().read_value(), [1])
        given = copy.copy(features)
        taken = {name: self._ids.take(given, name) for name in self._plan.features}
        stand_ins, lengths = {}, {}
        for name, (ids, _) in taken.items():
            rows = features[name].shape[0]
            stand_in = self._stand_in(name, rows=rows)
            # Never the stand-in itself, which a model may return as a prediction: only readers of a stand-in are
            # connected with the lookup below.
            given[name] = tf.identity(stand_in) if tap is None else tap.tap(name, stand_in)
            stand_ins[name] = stand_in
            longest = self._plan.features[name].max_sequence_length
            if longest:
                length = id_features.sequence_lengths(ids, max_length=longest)
                length.set_shape([rows])
                given[tf_private.lengths_key(name)] = lengths[name] = length
        with tf_private.noting_names(v1.get_default_graph()) as notes:
            spec = self._call_model_fn(given, labels, added)
        gradients = None if tap is None else tap.close()
        tables = self._make_tables(notes.full_names())
        activations = {
            name: self._look_up(name, tables, ids, weights)
            for name, (ids, weights) in taken.items()
        }
        for name, stand_in in stand_ins.items():
            activations[name].set_shape(stand_in.shape)
            for reader in stand_in.consumers():
                replace_consumers_input(reader, stand_in, activations[name])
        update = None
        if gradients is not None:
            slices = self._table_gradients(tables, activations, gradients)
            update = make_table_update(self._plan, tables, slices, step)
        flat = {name: self._by_sample(name, *both) for name, both in taken.items()}
        self.lookups = Lookups(
            ids={name: ids for name, (ids, _) in flat.items()},
            weights={name: weights for name, (_, weights) in flat.items() if weights is not None},
            samples={name: self._samples(name, features[name].shape[0]) for name in taken},
            activations=activations,
            lengths=lengths,
            sent=gradients or {},
            step=step,
            tables=tables,
            update=update,
        )
        return spec

    def _stand_in(self, name: str, *, rows: int | None) -> tf.Tensor:
        config = self._plan.features[name]
        positions = [config.max_sequence_length] if config.max_sequence_length else []
        dimension = self._plan.tables[config.table_id].dimension
        return v1.placeholder(tf.float32, [rows, *positions, dimension])

    def _samples(self, name: str, rows: int | None) -> int | None:
        longest = self._plan.features[name].max_sequence_length
        return None if rows is None else rows * max(longest, 1)

    def _by_sample(
        self, name: str, ids: Any, weights: tf.SparseTensor | None
    ) -> tuple[Any, tf.SparseTensor | None]:
        longest = self._plan.features[name].max_sequence_length
        if self._plan.combiner(name) is None:
            return tf.reshape(ids, [-1]), None
        if longest:
            ids = id_features.by_position(ids, longest)
            weights = None if weights is None else id_features.by_position(weights, longest)
        return ids, weights

    def _make_tables(self, used: Mapping[str, str]) -> dict[str, tf.Variable]:
        """Makes the tables' variables, after the model so that its optimizer does not train them."""
        names = self._plan.variable_names(used)
        return {
            table: v1.get_variable(
                names[table],
                shape=[config.vocabulary_size, config.dimension],
                dtype=tf.float32,
                initializer=config.initializer,
            )
            for table, config in self._plan.tables.items()
        }

    def _look_up(
        self,
        name: str,
        tables: Mapping[str, tf.Variable],
        ids: Any,
        weights: tf.SparseTensor | None,
    ) -> tf.Tensor:
        config = self._plan.features[name]
        table, combiner = tables[config.table_id], self._plan.combiner(name)
        if combiner is None:
            return id_features.look_up_dense(table, ids)
        if not config.max_sequence_length:
            return id_features.look_up(table, ids, weights, combiner=combiner)
        return id_features.look_up_sequence(
            table, ids, weights, combiner=combiner, max_length=config.max_sequence_length
        )

    def _table_gradients(
        self,
        tables: Mapping[str, tf.Variable],
        activations: Mapping[str, tf.Tensor],
        gradients: Mapping[str, tf.Tensor],
    ) -> dict[str, tf.IndexedSlices]:
        """Returns one core's gradient of each table; a table without features has none."""
        slices = {}
        for table, variable in tables.items():
            features = self._plan.features_of(table)
            if features:
                slices[table] = tf.gradients(
                    [activations[name] for name in features],
                    [variable],
                    grad_ys=[gradients[name] for name in features],
                )[0]
        return slices


class EmbeddedUnderStrategy:
    """A call under a strategy whose ids are looked up outside the replicas."""

    # On TPUs, embedding hardware does it: the embedding cores of v2, v3 and v4, the SparseCores of v5p and v6e. With
    # replicas on other devices, the host does. `call` has the wrapped functions.

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
            # The strategy's feed accepts only a dataset.
            return (
                ids.prepare_input(returned) if isinstance(returned, tf.data.Dataset) else returned
            )

        self.call = dataclasses.replace(
            call, call_input_fn=call_input_fn, call_model_fn=self._model
        )

    def update(self) -> HostFunction | None:
        """Returns the function that trains the tables, after the trace."""
        return None if self._model.lookups is None else self._model.lookups.update

    def make_tables(self) -> StrategyTables | None:
        """Makes the tables in the graph of the trace, or `None` without any."""
        lookups, replicas = self._model.lookups, self._strategy.num_replicas_in_sync
        if lookups is None:
            return None
        if self._tables_of_tpu is None:
            return HostTables(lookups, replicas=replicas)
        return self._tables_of_tpu(
            self._plan, lookups, self._strategy, is_training=self._is_training, spec=self._spec
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

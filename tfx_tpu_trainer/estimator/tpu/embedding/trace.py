"""Traces a model for cores together with its embeddings: model_fn gets activations in the place of ids."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.tf_private import replace_consumers_input
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.places.embedding_lookups import Lookups
from tfx_tpu_trainer.estimator.places.place import Call
from tfx_tpu_trainer.estimator.tpu.cores.run import CoreRun
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreTrace, trace_on_cores
from tfx_tpu_trainer.estimator.tpu.embedding import embedding_lookup, tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.embedding_lookup import GradientTap
from tfx_tpu_trainer.estimator.tpu.embedding.id_features import IdFeatures
from tfx_tpu_trainer.estimator.tpu.embedding.plan import EmbeddingPlan, plan_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec, refuse_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.table_update import make_table_update

v1 = tf.compat.v1


def trace_with_embeddings(spec: EmbeddingConfigSpec, run: CoreRun, call: Call) -> CoreTrace:
    """Traces a call as `trace_on_cores` does, with lookups between its two functions."""
    if run.system is not None:
        refuse_embeddings(spec, "in a TPU's session")
    plan = plan_embeddings(spec)
    ids = IdFeatures(plan, padded=run.mode == ModeKeys.PREDICT)
    model = EmbeddedModel(plan, ids, run.mode, call.call_model_fn)

    def call_input_fn(
        added: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, /
    ) -> Any:
        return ids.prepare_input(call.call_input_fn(added, input_context))

    embedded = dataclasses.replace(call, call_input_fn=call_input_fn, call_model_fn=model)
    trace = trace_on_cores(run, embedded)
    lookups = model.lookups
    update = None if lookups is None else lookups.update
    template = dataclasses.replace(trace.template, table_update=update)
    return dataclasses.replace(trace, template=template, embeddings=lookups)


class EmbeddedModel:
    """A model_fn whose ids are looked up before it, for one call of train, evaluate or predict.

    While the model is built its activations are placeholders: the columns say only then what
    their variables are called. Afterwards the lookups take their place, so that a copy of the
    model looks up the ids of its own core.

    Attributes:
        lookups: What passes between the model and the tables, once it was called; `None` where
            there is no table.
    """

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
        tap = GradientTap() if self._mode == ModeKeys.TRAIN else None
        # Read here, before the model raises it: a step sees it as the steps made before.
        step = tf.reshape(v1.train.get_global_step().read_value(), [1])
        given = copy.copy(features)
        taken = {name: self._ids.take(given, name) for name in self._plan.features}
        stand_ins, lengths = {}, {}
        for name, (ids, _) in taken.items():
            rows = features[name].shape[0]
            stand_in = self._stand_in(name, rows=rows)
            # Never the stand-in itself: a model may hand it on as a prediction.
            given[name] = tf.identity(stand_in) if tap is None else tap.tap(name, stand_in)
            stand_ins[name] = stand_in
            longest = self._plan.features[name].max_sequence_length
            if longest:
                length = embedding_lookup.sequence_lengths(ids, max_length=longest)
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
            ids = embedding_lookup.by_position(ids, longest)
            weights = None if weights is None else embedding_lookup.by_position(weights, longest)
        return ids, weights

    def _make_tables(self, used: Mapping[str, str]) -> dict[str, tf.Variable]:
        """Makes the tables' variables, after the model so that its optimizer does not know them."""
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
            return embedding_lookup.look_up_dense(table, ids)
        if not config.max_sequence_length:
            return embedding_lookup.look_up(table, ids, weights, combiner=combiner)
        return embedding_lookup.look_up_sequence(
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

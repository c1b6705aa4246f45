"""Keeps embedding tables on a TPU's own hardware: embedding cores (v2, v3, v4) and SparseCores (v5p, v6e)."""

from __future__ import annotations

import abc
import dataclasses
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator.places.place import Lookups
from tfx_tpu_trainer.estimator.places.strategy.tables import Batch, StrategyTables
from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec, EmbeddingPlan
from tfx_tpu_trainer.estimator.tpu.embedding.table_update import parameters_of
from tfx_tpu_trainer.estimator.tpu.embedding.tpu_configs import (
    SLOTS,
    StepRates,
    check_memory,
    check_plan,
    check_sparse_core_parameters,
    make_feature_configs,
)

_embedding = tf.tpu.experimental.embedding

# TensorFlow's name for the table itself, among its slots.
_TABLE = "parameters"


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place of a session's variable on the TPU: the names of its table and slot."""

    table: str
    slot: str


class TPUTables(StrategyTables):
    """Tables that a TPU looks up and trains, through one of TensorFlow's two classes."""

    # Not tested on TPU hardware. Tests cover the graph of the steps, and the transfer of tables to the devices and
    # back.

    def __init__(
        self,
        plan: EmbeddingPlan,
        lookups: Lookups,
        strategy: tf.distribute.Strategy,
        *,
        is_training: bool,
        spec: EmbeddingConfigSpec,
    ) -> None:
        """Makes the optimizers' slots in the trace's graph, which must be the default one."""
        super().__init__(lookups, replicas=strategy.num_replicas_in_sync)
        self._plan = plan
        self._strategy = strategy
        self._is_training = is_training
        self._pipelined = spec.pipeline_execution_with_tensor_core
        self._sparse_core_config = spec.sparse_core_embedding_config
        self._samples: dict[str, int] = {}
        for name, samples in lookups.samples.items():
            if samples is None:
                raise ValueError(
                    f"Feature {name} has no static number of rows, which a TPU needs to look its "
                    "ids up: batch the dataset of input_fn with drop_remainder=True."
                )
            self._samples[name] = samples
        self._places: dict[str, _Place] = {}
        for table, variable in lookups.tables.items():
            if plan.features_of(table):
                self._add_places(table, variable)
        # Tables without features stay unchanged in the session.
        self.handles = [handle for handle in self.handles if handle.name in self._places]

    @classmethod
    @abc.abstractmethod
    def check(cls, plan: EmbeddingPlan, strategy: tf.distribute.Strategy) -> None:
        """Checks that the hardware can hold and train a plan's tables."""

    def finish(
        self, copier: GraphCopier, batches: Sequence[Batch], returned: Sequence[Sequence[tf.Tensor]]
    ) -> None:
        """Does nothing: the replicas have trained the tables."""

    def _add_places(self, table: str, variable: tf.Variable) -> None:
        ends = SLOTS[type(parameters_of(self._plan, table))] if self._is_training else {}
        names = {variable.op.name: _TABLE}
        names |= {f"{variable.op.name}/{end}": slot for slot, end in ends.items()}
        for handle in self.handles:
            if handle.op.name in names:
                self._places[handle.name] = _Place(table, names[handle.op.name])

    def _values_by_slot(self, values: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        """Returns slot -> table -> value."""
        by_slot: dict[str, dict[str, np.ndarray]] = {}
        for handle, place in self._places.items():
            by_slot.setdefault(place.slot, {})[place.table] = values[handle]
        return by_slot

    def _ids_on_host(self, copier: GraphCopier, batch: Batch, replica: int) -> _HostIds:
        """Makes a replica's ids, weights and lengths from its batch."""
        lookups, device = self._lookups, self._strategy.extended.worker_devices[replica]
        host = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
        wanted = [dict(lookups.ids), dict(lookups.weights), dict(lookups.lengths)]
        with tf.device(host.to_string()):
            copies = copier.copy_replica(
                tf.nest.flatten(wanted, expand_composites=True),
                replaced=batch,
                replica=replica,
                name="ids",
            )
        ids, weights, lengths = tf.nest.pack_sequence_as(wanted, copies, expand_composites=True)
        return _HostIds(
            ids, {name: weights.get(name) for name in ids} if weights else None, lengths
        )

    def _activations(self, found: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Returns the looked-up embeddings by sample, in the shapes that the model expects."""
        shapes = {name: each.shape for name, each in self._lookups.activations.items()}
        return [tf.reshape(found[name], shape) for name, shape in shapes.items()]

    def _gradients(self, sent: Sequence[tf.Tensor], step: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the gradients by sample, multiplied as the spec requires."""
        multiplier = None
        if self._plan.gradient_multiplier_fn is not None:
            multiplier = tf.cast(self._plan.gradient_multiplier_fn(step), tf.float32)
        gradients = {}
        for name, gradient in zip(self._lookups.sent, sent):
            gradient = tf.reshape(gradient, [self._samples[name], gradient.shape[-1]])
            gradients[name] = gradient if multiplier is None else gradient * multiplier
        return gradients


@dataclasses.dataclass(frozen=True)
class _HostIds:
    """A replica's ids, weights and lengths, by the features' names."""

    ids: Mapping[str, Any]
    weights: Mapping[str, Any] | None  # `None` if no feature has any.
    lengths: Mapping[str, tf.Tensor]  # Only of sequence features.


@dataclasses.dataclass
class _EmbeddingCores:
    """The embedding cores of a strategy's TPU, which TensorFlow sets up once."""

    key: Any  # Identifies the set-up.
    embedding: Any
    rates: StepRates
    is_taken: bool = False  # Whether they hold the tables of running steps.


# TensorFlow sets up embedding cores once, so a second TPUEmbedding on the same TPU fails; the first is kept, by
# its strategy. A new strategy, for a TPU initialized again, has no entry.
_cores_of: weakref.WeakKeyDictionary[tf.distribute.Strategy, _EmbeddingCores] = (
    weakref.WeakKeyDictionary()
)


class EmbeddingCoreTables(TPUTables):
    """Tables on embedding cores, through `tf.tpu.experimental.embedding.TPUEmbedding`."""

    # The host enqueues a step's ids; the replicas dequeue activations and send gradients back.

    @classmethod
    def check(cls, plan: EmbeddingPlan, strategy: tf.distribute.Strategy) -> None:
        """Checks that embedding cores can hold and train the tables; see `TPUTables`."""
        check_plan(plan, where="embedding cores")
        check_memory(plan, devices=strategy.num_replicas_in_sync, generations=("v2", "v3", "v4"))

    def start(self, values: Mapping[str, np.ndarray]) -> None:
        """Loads the tables into the cores' memory."""
        cores = self._set_up()
        if cores.is_taken:
            raise RuntimeError(
                "The embedding cores hold the tables of a training that is running. Evaluate when "
                "it has ended, or on this host: TPUEstimator(eval_on_tpu=False), and no "
                "eval_distribute in RunConfig."
            )
        variables = tf_private.variables_of_hosts(cores.embedding)
        for slot, tables in self._values_by_slot(values).items():
            for table, value in tables.items():
                # One variable per host, with consecutive rows: of eight rows on two hosts, the first four and the last
                # four.
                shards = variables[table][slot]
                ends = np.cumsum([int(shard.shape[0]) for shard in shards])[:-1]
                for shard, part in zip(shards, np.split(value, ends), strict=True):
                    shard.assign(part)
        tf_private.load(cores.embedding)
        cores.is_taken, self._cores = True, cores
        # Until the first step, the session has the loaded values.
        self._is_retrieved = True

    def send(self, copier: GraphCopier, batches: Sequence[Batch]) -> list[list[tf.Tensor]]:
        """Enqueues the replicas' ids; passes on the sequences' lengths."""
        passed = []
        for number, batch in enumerate(batches):
            on_host = self._ids_on_host(copier, batch, number)
            self._cores.embedding.enqueue(
                on_host.ids,
                weights=on_host.weights,
                training=self._is_training,
                device=self._strategy.extended.worker_devices[number],
            )
            passed.append(list(on_host.lengths.values()))
        return passed

    def receive(self, passed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Dequeues the activations."""
        return [*self._activations(self._cores.embedding.dequeue()), *passed]

    def train(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends the gradients to the cores."""
        if sent:
            *gradients, steps = sent
            with self._cores.rates.at(steps[0]):
                self._cores.embedding.apply_gradients(self._gradients(gradients, steps[0]))
        return []

    def step(self) -> None:
        """Marks the hosts' tables as outdated."""
        self._is_retrieved = False

    def value(self, handle: str) -> np.ndarray:
        """Returns a variable's value, fetching all tables first if steps were made since."""
        # One retrieval fetches all tables and slots, so a checkpoint pays only once.
        if not self._is_retrieved:
            tf_private.retrieve(self._cores.embedding)
            self._is_retrieved = True
        place = self._places[handle]
        shards = tf_private.variables_of_hosts(self._cores.embedding)[place.table]
        return np.concatenate([shard.numpy() for shard in shards[place.slot]])

    def stop(self) -> None:
        """Releases the cores for other steps."""
        self._cores.is_taken = False
        del self._cores

    def _set_up(self) -> _EmbeddingCores:
        key = (self._samples, self._pipelined, _identity(self._plan))
        known = _cores_of.get(self._strategy)
        if known is not None and known.key == key:
            return known
        if known is not None or tf_private.are_cores_set_up():
            raise RuntimeError(
                "The TPU's embedding cores were set up for other tables, optimizers or batch sizes, "
                "which TensorFlow does once: use one EmbeddingConfigSpec and one batch size for "
                "training and evaluation, or call tf.tpu.experimental.initialize_tpu_system and "
                "make a new TPUStrategy before the next call."
            )
        rates = StepRates()
        with self._strategy.scope():
            embedding = _embedding.TPUEmbedding(
                make_feature_configs(self._plan, self._samples, rates),
                optimizer=None,
                pipeline_execution_with_tensor_core=self._pipelined,
            )
            embedding.build()
        _cores_of[self._strategy] = cores = _EmbeddingCores(key, embedding, rates)
        return cores


class SparseCoreTables(TPUTables):
    """Tables on SparseCores, through `tf.tpu.experimental.embedding.TPUEmbeddingV2`."""

    # They are variables on the TPU devices, which a replica's program reads and updates. The host prepares the ids,
    # outside of that program.

    @classmethod
    def check(cls, plan: EmbeddingPlan, strategy: tf.distribute.Strategy) -> None:
        """Checks that SparseCores can hold and train the tables; see `TPUTables`."""
        check_plan(plan, where="SparseCores")
        check_sparse_core_parameters(plan)
        check_memory(plan, devices=strategy.num_replicas_in_sync, generations=("v5p", "v6e"))

    def start(self, values: Mapping[str, np.ndarray]) -> None:
        """Makes the variables on the devices."""
        self._rates, config = StepRates(), self._sparse_core_config
        # TensorFlow 2.16 lacks this argument.
        options = {} if config is None else {"sparse_core_embedding_config": config}
        with self._strategy.scope():
            self._embedding = _embedding.TPUEmbeddingV2(
                make_feature_configs(self._plan, self._samples, self._rates),
                pipeline_execution_with_tensor_core=self._pipelined,
                **options,
            )
            cores = tf_private.cores_of_device(self._embedding)
            self._check_samples(cores)
            self._embedding.build()
        cores *= self._strategy.num_replicas_in_sync
        shapes = {
            name: (config.vocabulary_size, config.dimension)
            for name, config in self._plan.tables.items()
        }
        self._layouts = {
            name: StackLayout(places, shapes, cores)
            for name, places in tf_private.stacks(self._embedding).items()
        }
        for slot, tables in self._values_by_slot(values).items():
            for name, layout in self._layouts.items():
                stacked = {table: tables[table] for table in layout.places if table in tables}
                if stacked:
                    shards = self._shards(name, slot)
                    parts = layout.pack(stacked, devices=len(shards))
                    for shard, part in zip(shards, parts, strict=True):
                        shard.assign(part)

    def send(self, copier: GraphCopier, batches: Sequence[Batch]) -> list[list[tf.Tensor]]:
        """Passes on the replicas' ids; TensorFlow moves them out of the replicas' program again."""
        passed = []
        for number, batch in enumerate(batches):
            on_host = self._ids_on_host(copier, batch, number)
            # Kept for `receive`: a replica's program takes one list of tensors. `None` (a feature without weights) is
            # left out and restored by this structure, which is the same for all replicas.
            self._structure = [on_host.ids, on_host.weights, on_host.lengths]
            passed.append(tf.nest.flatten(self._structure, expand_composites=True))
        return [[tensor for tensor in tensors if tensor is not None] for tensors in passed]

    def receive(self, passed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Looks the ids up."""
        tensors = iter(passed)
        flat = [
            None if each is None else next(tensors)
            for each in tf.nest.flatten(self._structure, expand_composites=True)
        ]
        ids, weights, lengths = tf.nest.pack_sequence_as(
            self._structure, flat, expand_composites=True
        )
        found, self._kept = self._embedding(ids, weights)
        return [*self._activations(found), *lengths.values()]

    def train(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Updates the tables."""
        if sent:
            *gradients, steps = sent
            with self._rates.at(steps[0]):
                self._embedding.apply_gradients(self._gradients(gradients, steps[0]), self._kept)
        del self._kept
        return []

    def step(self) -> None:
        """Does nothing: the variables are always up to date."""

    def value(self, handle: str) -> np.ndarray:
        """Returns a variable's value."""
        place = self._places[handle]
        for name, layout in self._layouts.items():
            if place.table in layout.places:
                parts = [shard.numpy() for shard in self._shards(name, place.slot)]
                return layout.unpack(parts, place.table)
        raise KeyError(handle)

    def stop(self) -> None:
        """Frees the variables."""
        del self._embedding, self._layouts

    def _shards(self, stack: str, slot: str) -> Collection[tf.Variable]:
        """Returns a stack's parts on the devices."""
        return self._strategy.experimental_local_results(self._embedding.variables[stack][slot])

    def _check_samples(self, cores: int) -> None:
        for name, samples in self._samples.items():
            # `cores` counts one device's cores, which share the samples of its replica.
            if samples % cores:
                raise ValueError(
                    f"Feature {name} has {samples} samples on a replica, which the {cores} "
                    "SparseCores of its device can't share evenly: use a batch size for which "
                    f"each replica's rows are a multiple of {cores}."
                )


def _identity(plan: EmbeddingPlan) -> tuple[Any, ...]:
    """Returns a key that plans with the same tables, features and optimizers share."""
    tables = {
        name: (
            config.vocabulary_size,
            config.dimension,
            config.combiner,
            config.learning_rate_fn,
            parameters_of(plan, name),
        )
        for name, config in plan.tables.items()
        if plan.features_of(name)
    }
    return tables, {name: config.table_id for name, config in plan.features.items()}


@dataclasses.dataclass(frozen=True)
class StackLayout:
    """The positions of stacked tables' rows on SparseCores."""

    # `TPUEmbeddingV2` stacks tables of one width and optimizer, pads them, and spreads each over all SparseCores of a
    # slice. Checkpoints keep tables whole, so values are packed when they are loaded and unpacked when they are saved.

    places: Mapping[str, tf_private.StackedTable]  # By table name.
    shapes: Mapping[str, tuple[int, int]]  # Table -> rows and width, without padding.
    cores: int  # SparseCores of the whole slice.

    @property
    def padded_dim(self) -> int:
        """Width of all tables, with padding."""
        return next(iter(self.places.values())).padded_dim

    @property
    def rows(self) -> int:
        """Rows of the stack, with padding."""
        return sum(place.padded_rows for place in self.places.values())

    def pack(self, values: Mapping[str, np.ndarray], *, devices: int) -> list[np.ndarray]:
        """Arranges tables, or their slots, for devices."""
        stack = np.zeros((self.cores, self.rows // self.cores, self.padded_dim), np.float32)
        for name, value in values.items():
            core, place = self._where(name)
            stack[core, place, : self.shapes[name][1]] = value
        return np.split(stack.reshape(self.rows, self.padded_dim), devices)

    def unpack(self, parts: Sequence[np.ndarray], name: str) -> np.ndarray:
        """Collects a table, or its slot, from the devices' parts."""
        stack = np.concatenate(parts).reshape(self.cores, -1, self.padded_dim)
        core, place = self._where(name)
        return stack[core, place, : self.shapes[name][1]]

    def _where(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns each row's SparseCore and its position there."""
        # Row i of a table is on SparseCore (i + rotation) mod cores. There, a table's rows follow those of the
        # preceding tables, and a device holds its SparseCores' rows consecutively. With 4 cores, rotation 1 and offset
        # 8, row 5 is on core 2, at position (8 + 5) // 4 = 3: after two rows of the preceding tables, and row 1.
        table = self.places[name]
        rows = np.arange(self.shapes[name][0])
        return (rows + table.rotation) % self.cores, (table.offset + rows) // self.cores

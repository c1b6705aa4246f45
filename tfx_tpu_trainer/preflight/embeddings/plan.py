"""What embeddings need on SparseCores: buffers at which no id is dropped, HBM, and how even the chips' work is.

TensorFlow compiles a lookup for so many ids, and so many unique ids, from one SparseCore to one partition of a stacked
table (`max_ids_per_table` and `max_unique_ids_per_table` of `SparseCoreEmbeddingConfig`), and sends a chip at most
`max_ids_per_chip_per_sample` ids for each sample. A batch with more is cut into mini-batches, drops ids, or ends the
training. The most that a training will ask for is not known before; what real ids ask for is, and a
margin on top of it, which batches that were held out then show to be enough or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfx_tpu_trainer.hardware import CHIPS, Slice, TpuSpec
from tfx_tpu_trainer.preflight._across_slices import check_slices
from tfx_tpu_trainer.preflight.embeddings.counting import Integers, StackCounter
from tfx_tpu_trainer.preflight.embeddings.ids import (
    Batches,
    FeatureIds,
    IdSource,
    batches_of_sources,
)
from tfx_tpu_trainer.preflight.embeddings.input_ids import batches_of_dataset
from tfx_tpu_trainer.preflight.embeddings.layout import (
    FLOAT_BYTES,
    PADDING,
    Cores,
    Stack,
    lay_out,
    samples_of_row,
)
from tfx_tpu_trainer.preflight.embeddings.results import EmbeddingPlan, Need, StackPlan

HOLD_OUT = 5
"""One in this many batches is held out."""

MARGIN = 0.2
"""Room in a buffer beyond the largest number of ids seen, as a share of it."""

_MOST_INPUT_BATCHES = 1000
# Lists of ids that a replica is sent: samples, rows and weights of 4 bytes each.
_BYTES_OF_ID = 12


def plan_embeddings(
    *,
    features: Mapping[str, Any],
    ids: Mapping[str, IdSource] | tf.data.Dataset | Callable[..., Any],
    tpu: str | TpuSpec,
    num_slices: int = 1,
    batch_size: int,
    optimizer: Any = None,
    params: Mapping[str, Any] | None = None,
    rows: int | None = None,
    hold_out: int = HOLD_OUT,
    margin: float = MARGIN,
    stacking: bool = True,
) -> EmbeddingPlan:
    """Plans embeddings for SparseCores, from ids like those of the training. Needs no TPU and no compiler.

    Examples:
        >>> from tfx_tpu_trainer.preflight import plan_embeddings
        >>> from tfx_tpu_trainer.preflight.embeddings import ZipfIds
        >>> import tensorflow as tf
        >>> words = tf.tpu.experimental.embedding.TableConfig(vocabulary_size=10_000, dim=60, name="words")
        >>> plan = plan_embeddings(
        ...     features={"word": tf.tpu.experimental.embedding.FeatureConfig(table=words)},
        ...     ids={"word": ZipfIds(10_000, exponent=1.1, per_row=5, rows=20_480, seed=1)},
        ...     tpu="v6e:2x4",
        ...     batch_size=1024,
        ...     optimizer=tf.tpu.experimental.embedding.Adagrad(0.1),
        ... )
        >>> plan.ok, plan.settings()["max_ids_per_table"]
        (True, {'words': 69})

    Args:
        features: Name -> `tf.tpu.experimental.embedding.FeatureConfig`, whose tables have names.
        ids: The ids that the features look up: an input_fn or a dataset, of batches over all replicas with
            the features by name, or a source for each feature. -1 in a dense tensor is not an id.
        tpu: The slice, as `"v6e:2x4"`.
        num_slices: Slices like it that train one model, each with tables of its own, joined by the data
            center's network. Defaults to 1.
        batch_size: Rows of a step over all replicas of all slices.
        optimizer: Of `tf.tpu.experimental.embedding`: that of tables that have none of their own. Defaults to
            `None`: each has one.
        params: What an input_fn gets as `params` besides the batch size. Defaults to none.
        rows: The most rows to read. Defaults to `None`: all, and of an input 1,000 batches.
        hold_out: One in this many batches is held out: it is compared with the plan, not used for it. Defaults to 5.
        margin: Room in a buffer beyond the largest number of ids seen, as a share of it. Defaults to 0.2.
        stacking: Whether TensorFlow stacks tables: not `disable_table_stacking`. Defaults to `True`.

    Returns:
        The plan.

    Raises:
        ValueError: The chips have no SparseCores, the batch size is not a multiple of their number, an id is
            none of its table, the input fails, or there are fewer than two batches.
    """
    found = TpuSpec.read(tpu).tpu_slice
    cores = cores_of(found)
    check_slices(found, num_slices)
    _check(cores, found, num_slices, batch_size=batch_size, hold_out=hold_out, margin=margin)
    of_slice = batch_size // num_slices
    if not features:
        raise ValueError("features is empty: give a FeatureConfig for each.")
    stacks = lay_out(
        features, optimizer=optimizer, cores=cores, batch_size=of_slice, stacking=stacking
    )
    if isinstance(ids, Mapping):
        odd = sorted(set(ids) ^ set(features))
        if odd:
            raise ValueError(
                f"ids and features have different names: {odd[0]!r} is in only one of them."
            )
        batches = batches_of_sources(ids, features=features, batch_size=batch_size)
    else:
        batches = batches_of_dataset(ids, features=features, batch_size=batch_size, params=params)
        rows = rows or _MOST_INPUT_BATCHES * batch_size
    seen = [_Seen(stack, features, cores, of_slice, num_slices) for stack in stacks]
    count, ids_read = _count(batches, seen, most=None if rows is None else rows // batch_size)
    held_out = np.arange(count) % hold_out == hold_out - 1
    if not held_out.any() or held_out.all():
        raise ValueError(
            f"the ids fill {count} batch{'es' * (count != 1)} of {batch_size:,} rows, and one of {hold_out} is held "
            f"out: give at least {hold_out * batch_size:,} rows."
        )
    plans, dropping = [], np.zeros(count, np.bool_)
    per_sample = _per_sample(seen, held_out, margin)
    for each in seen:
        plan = each.plan(held_out, margin, per_sample, found)
        plans.append(plan)
        dropping |= np.array(each.ids) > plan.ids.buffer
        dropping |= np.array(each.unique_ids) > plan.unique_ids.buffer
        dropping |= np.array(each.replica_ids) > per_sample * each.stack.samples
    return EmbeddingPlan(
        tpu=found.name,
        num_slices=num_slices,
        network_bytes=round(sum(each.gradient_bytes for each in seen) / count / num_slices),
        batch_size=batch_size,
        cores=cores,
        rows=count * batch_size,
        ids=ids_read,
        batches=int((~held_out).sum()),
        held_out_batches=int(held_out.sum()),
        dropping_batches=int((dropping & held_out).sum()),
        margin=margin,
        stacks=tuple(plans),
        max_ids_per_chip_per_sample=per_sample,
        limit_bytes=found.chip.program_hbm_bytes * found.chip.devices,
    )


def cores_of(found: Slice) -> Cores:
    """Returns the SparseCores of a slice."""
    chip = found.chip
    if not chip.sparse_cores:
        having = ", ".join(each.generation for each in CHIPS.values() if each.sparse_cores)
        raise ValueError(
            f"TPU {found.name!r}: chips of {chip.generation} have no SparseCores; use {having}."
        )
    return Cores(
        chips=found.num_chips,
        replicas=found.num_devices,
        per_replica=chip.sparse_cores // chip.devices,
    )


def _check(
    cores: Cores, found: Slice, num_slices: int, *, batch_size: int, hold_out: int, margin: float
) -> None:
    count = cores.count * num_slices
    if batch_size < 1 or batch_size % count:
        below = batch_size // count * count
        nearest = " or ".join(str(size) for size in (below, below + count) if size > 0)
        slices = f"{num_slices} slices of " if num_slices > 1 else ""
        raise ValueError(
            f"batch size {batch_size} must be divisible by the {count} SparseCores of {slices}{found.name}: "
            f"{nearest} would be."
        )
    if hold_out < 2:
        raise ValueError(f"hold_out={hold_out}: hold out one batch of 2 or more.")
    if not 0 <= margin <= 10:
        raise ValueError(f"margin={margin}: give a share from 0 to 10, such as 0.2.")


def _count(batches: Batches, seen: Sequence[_Seen], *, most: int | None) -> tuple[int, int]:
    """Counts batches, and returns how many there were and how many ids."""
    count = ids = 0
    # An input's session is closed with the generator.
    with contextlib.closing(batches):
        for batch in batches if most is None else itertools.islice(batches, most):
            ids += sum(len(each.values) for each in batch.values())
            for each in seen:
                each.add(batch)
            count += 1
    return count, ids


class _Seen:
    """What the batches have asked of a stack."""

    def __init__(
        self,
        stack: Stack,
        features: Mapping[str, Any],
        cores: Cores,
        rows_of_slice: int,
        num_slices: int,
    ) -> None:
        self.stack = stack
        self.gradient_bytes = 0
        self._rows_of_slice = rows_of_slice
        self._num_slices = num_slices
        self._samples_of_row = {name: samples_of_row(each) for name, each in features.items()}
        self.ids: list[int] = []
        self.unique_ids: list[int] = []
        self.replica_ids: list[int] = []
        self._cores = cores
        self._ids_of_partition: Integers = np.zeros(cores.count, np.int64)
        self._rows_of_partition: Integers = np.zeros(cores.count, np.int64)
        self._counter = StackCounter(
            stack,
            cores=cores,
            batch_size=rows_of_slice,
            samples_of_row=self._samples_of_row,
            counts_gradients=num_slices > 1,
        )

    def add(self, batch: Mapping[str, FeatureIds]) -> None:
        counts = [self._counter.count(part) for part in self._of_slices(batch)]
        # All slices run one program: its buffers are those of the slice that asks for most.
        self.ids.append(max(each.ids for each in counts))
        self.unique_ids.append(max(each.unique_ids for each in counts))
        self.replica_ids.append(max(each.replica_ids for each in counts))
        for each in counts:
            self._ids_of_partition += each.ids_of_partition
            self._rows_of_partition += each.unique_ids_of_partition
            self.gradient_bytes += each.gradient_bytes

    def _of_slices(self, batch: Mapping[str, FeatureIds]) -> Iterator[Mapping[str, FeatureIds]]:
        """Yields the rows of each slice, which get those of a batch in order."""
        if self._num_slices == 1:
            yield batch
            return
        for number in range(self._num_slices):
            part = {}
            for name, ids in batch.items():
                samples = self._rows_of_slice * self._samples_of_row[name]
                chosen = ids.samples // samples == number
                part[name] = FeatureIds(ids.values[chosen], ids.samples[chosen] - number * samples)
            yield part

    def plan(
        self, held_out: npt.NDArray[np.bool_], margin: float, per_sample: int, found: Slice
    ) -> StackPlan:
        cores, stack = self._cores, self.stack
        replicas = cores.replicas // cores.chips
        unique = _need(self.unique_ids, held_out, margin)
        activations = stack.samples * stack.padded_dim * FLOAT_BYTES * replicas
        return StackPlan(
            stack=stack,
            ids=_need(self.ids, held_out, margin),
            unique_ids=unique,
            ids_per_sample=dataclasses.replace(
                _need(np.array(self.replica_ids) / stack.samples, held_out, margin),
                buffer=per_sample,
            ),
            ids_of_chip=self._of_chip(self._ids_of_partition),
            rows_of_chip=self._of_chip(self._rows_of_partition),
            table_bytes=stack.bytes // found.num_chips,
            activation_bytes=2 * activations,
            input_bytes=per_sample * stack.samples * _BYTES_OF_ID * replicas,
            buffer_bytes=buffer_bytes(stack.padded_dim, unique.buffer, cores),
        )

    def _of_chip(self, of_partition: Integers) -> tuple[int, ...]:
        return tuple(of_partition.reshape(self._cores.chips, -1).sum(axis=1).tolist())


def buffer_bytes(padded_dim: int, unique_ids: int, cores: Cores) -> int:
    """Returns what a chip needs for the rows of a stack on their way, of the two passes of a step the larger.

    As OpenXLA estimates it (https://openxla.org/xla/sparsecore, "HBM stack usage"), forward (2 width + 1) and
    backward 3 width values for each unique id and partition; for each SparseCore of the chip.
    """
    values = max(2 * padded_dim + 1, 3 * padded_dim)
    return values * unique_ids * cores.count * FLOAT_BYTES * cores.per_chip


def _need(
    values: Sequence[int] | npt.NDArray[Any], held_out: npt.NDArray[np.bool_], margin: float
) -> Need:
    planned, others = np.asarray(values)[~held_out], np.asarray(values)[held_out]
    most = planned.max().item()
    return Need(
        median=float(np.median(planned)),
        high=float(np.quantile(planned, 0.99)),
        most=most,
        buffer=_with_margin(most, margin),
        held_out=others.max().item(),
    )


def _with_margin(most: float, margin: float) -> int:
    """Returns a size that holds what was seen, and no more than the margin allows; a buffer of 0 is none."""
    return max(1, math.ceil(most), math.floor(most * (1 + margin) + 1e-9))


def _per_sample(seen: Sequence[_Seen], held_out: npt.NDArray[np.bool_], margin: float) -> int:
    """Returns the one number of ids for each sample that all stacks are sent with.

    What a replica is sent has to be a multiple of 8 in length.
    """
    most = max((np.array(each.replica_ids)[~held_out] / each.stack.samples).max() for each in seen)
    size = _with_margin(float(most), margin)
    while any(size * each.stack.samples % PADDING for each in seen):
        size += 1
    return size

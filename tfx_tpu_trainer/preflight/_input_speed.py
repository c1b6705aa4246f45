"""Measures a program's input on this machine, and scales its speed to a slice's hosts."""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.messages import first_reason
from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.extending import (
    InputTensors,
    as_input_tensors,
    call_graph,
    call_input_fn,
)
from tfx_tpu_trainer.estimator.tpu import RunConfig
from tfx_tpu_trainer.hardware import Slice

v1 = tf.compat.v1

LONGEST_SECONDS = 60.0
"""The longest measurement."""

# Virtual CPUs of a machine, by generation and chips: those of the machine types in "Plan TPUs in GKE"
# (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus); for v2 and v3, those of a TPU VM.
_HOST_CPUS: Mapping[tuple[str, int], int] = {
    ("v2", 4): 96,
    ("v3", 4): 96,
    ("v4", 4): 240,
    ("v5e", 1): 24,
    ("v5e", 4): 112,
    ("v5e", 8): 224,
    ("v5p", 4): 208,
    ("v6e", 1): 44,
    ("v6e", 4): 180,
    ("v6e", 8): 180,
}

# 10^9 bytes a second from a host to each chip over PCIe, "How to Scale Your Model", its table of
# TPUs (https://jax-ml.github.io/scaling-book/tpus/).
_TO_CHIP_GB_PER_S = {"v6e": 32.0}
_TO_OLDER_CHIP_GB_PER_S = 16.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSpeed:
    """The speed of an input_fn."""

    seconds: float  # duration of the reading after the first batch
    rows: int  # rows read
    ends: int  # restarts from the beginning
    cpus: int  # this machine's CPUs
    cpus_used: float  # CPUs that the reading kept busy, on average
    row_bytes: float  # bytes per row, features and labels
    hosts: int  # the slice's machines
    host_cpus: int  # CPUs per machine
    chips: int  # the slice's chips
    to_chip_gb_per_s: float  # from a host to one chip, in 10^9 bytes per second

    @property
    def rows_per_second(self) -> float:
        """Rows per second on this machine."""
        return self.rows / self.seconds

    @property
    def slice_rows_per_second(self) -> float:
        """Rows per second of the slice's hosts, if the work spreads over their CPUs."""
        return self.rows_per_second / self.cpus * self.host_cpus * self.hosts

    @property
    def is_serial(self) -> bool:
        """Whether the reading left more than half of this machine idle, as serial reading does."""
        return self.cpus > 1 and self.cpus_used < max(1.1, self.cpus / 2)

    def step_seconds(self, batch_size: int) -> float:
        """Returns the hosts' time for the rows of one step over all replicas."""
        return batch_size / self.slice_rows_per_second

    def transfer_seconds(self, batch_size: int) -> float:
        """Returns the transfer time of one step's rows from the hosts to the chips."""
        return batch_size / self.chips * self.row_bytes / (self.to_chip_gb_per_s * 1e9)

    def to_json(self) -> dict[str, Any]:
        """Returns the values as JSON values, derived ones included."""
        return {
            **dataclasses.asdict(self),
            "rows_per_second": self.rows_per_second,
            "slice_rows_per_second": self.slice_rows_per_second,
            "is_serial": self.is_serial,
        }


class InputError(ValueError):
    """An input_fn can't be measured: it fails, or returns nothing."""


def measure_input(
    input_fn: Callable[..., Any],
    *,
    tpu_slice: Slice,
    batch_size: int,
    seconds: float,
    params: Mapping[str, Any] | None = None,
    config: RunConfig | None = None,
) -> InputSpeed:
    """Reads a training's input like a host of the slice, and does nothing else.

    An input that ends is read again from its start, as often as there is time.

    Args:
        input_fn: As for `TPUEstimator`.
        tpu_slice: The slice.
        batch_size: Rows of a step over all replicas.
        seconds: The duration of the reading, at most `LONGEST_SECONDS`.
        params: The `params` of input_fn, without the batch size. Defaults to none.
        config: Configuration of the run. Defaults to `RunConfig()`.

    Returns:
        The speed.

    Raises:
        ValueError: If `seconds` is out of its range.
        InputError: If input_fn fails, or returns no row.
    """
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(
            f"--measure_input {seconds:g}: give a number of seconds above 0, at most "
            f"{LONGEST_SECONDS:g}."
        )
    config = config or RunConfig()
    rows_of_host = max(1, batch_size // tpu_slice.hosts)
    with call_graph(config) as graph:
        given = {**(params or {}), "batch_size": rows_of_host}
        returned = call_input_fn(input_fn, mode=ModeKeys.TRAIN, params=given, config=config)
        tensors = as_input_tensors(returned).with_tensors()
        reading = _Reading(tensors, rows_of_host)
        with v1.Session(graph=graph) as session:
            reading.run(session, seconds)
    generation = tpu_slice.chip.generation
    cpus = len(os.sched_getaffinity(0))
    host_cpus = _HOST_CPUS.get((generation, tpu_slice.chips_per_host))
    return InputSpeed(
        seconds=reading.seconds,
        rows=reading.rows,
        ends=reading.ends,
        cpus=cpus,
        cpus_used=reading.cpu_seconds / reading.seconds,
        row_bytes=reading.bytes / max(1, reading.rows),
        hosts=tpu_slice.hosts,
        host_cpus=host_cpus or 24 * tpu_slice.chips_per_host,
        chips=tpu_slice.num_chips,
        to_chip_gb_per_s=_TO_CHIP_GB_PER_S.get(generation, _TO_OLDER_CHIP_GB_PER_S),
    )


class _Reading:
    """Reads batches one after the other."""

    def __init__(self, tensors: InputTensors, batch_size: int) -> None:
        self._initializers = [v1.tables_initializer()]
        if tensors.iterator is not None:
            self._initializers.append(tensors.iterator.initializer)
        leaves = [
            each.values if isinstance(each, tf.SparseTensor) else each
            for each in tf.nest.flatten((tensors.features, tensors.labels))
            if each is not None
        ]
        if not leaves:
            raise InputError("--measure_input: input_fn returned no tensors.")
        # The batch itself stays in the session, which only returns sizes.
        first = leaves[0]
        self._rows = tf.shape(first, tf.int64)[0] if first.shape.rank else tf.constant(batch_size)
        self._bytes = tf.add_n(
            [tf.size(each, tf.int64) * max(1, each.dtype.size or 1) for each in leaves]
        )
        # Static sizes are known without reading a batch, so control inputs force all values to be computed.
        with tf.control_dependencies(leaves):
            self._sizes = [tf.identity(self._rows), tf.identity(self._bytes)]
        self.rows = self.ends = 0
        self.bytes = self.seconds = self.cpu_seconds = 0.0

    def run(self, session: Any, seconds: float) -> None:
        """Reads for a number of seconds; the first batch, which fills buffers, does not count."""
        self._start(session)
        if self._next(session) is None:
            raise InputError("--measure_input: input_fn's data ends before its first row.")
        began, began_cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() < began + seconds:
            sizes = self._next(session)
            if sizes is None:
                self.ends += 1
                self._start(session)
                continue
            self.rows += int(sizes[0])
            self.bytes += float(sizes[1])
        self.seconds = max(time.perf_counter() - began, 1e-9)
        self.cpu_seconds = time.process_time() - began_cpu
        if not self.rows:
            raise InputError(
                f"--measure_input: no second batch arrived within {seconds:g} s: give more "
                "seconds, or a smaller batch size."
            )

    def _start(self, session: Any) -> None:
        self._failing(lambda: session.run(self._initializers))

    def _next(self, session: Any) -> Any:
        try:
            return self._failing(lambda: session.run(self._sizes))
        except tf.errors.OutOfRangeError:
            return None

    def _failing(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except tf.errors.OutOfRangeError:
            raise
        except Exception as error:
            message = first_reason(str(getattr(error, "message", error)))
            raise InputError(
                f"--measure_input: input_fn fails after {self.rows:,} rows: "
                f"{type(error).__name__}: {message[:500]}"
            ) from error

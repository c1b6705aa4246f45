"""What must hold between a TPU slice and the other settings of a training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Protocol

from tfx_tpu_trainer.hardware import TpuSpec


class SliceSettings(Protocol):
    """The settings that have to do with a slice, as `TrainSettings` has them."""

    @property
    def tpu(self) -> TpuSpec | None:
        """The slice."""

    @property
    def use_tpu(self) -> bool | None:
        """Whether training runs on TPU cores."""

    @property
    def num_shards(self) -> int | None:
        """Replicas."""

    @property
    def num_cores_per_replica(self) -> int | None:
        """Cores of one replica."""


def tpu_rules(settings: SliceSettings) -> Iterable[tuple[set[str], str | None]]:
    """Yields, for each rule, the names of the settings that it needs and the problem, if any.

    Args:
        settings: The settings; without a `tpu` there is no rule.
    """
    tpu, cores = settings.tpu, settings.num_cores_per_replica
    if tpu is None:
        return
    yield (
        {"use_tpu"},
        f"use_tpu=False contradicts tpu={tpu.slice_name!r}; leave one of them out, or emulate the "
        "cores of that slice on this host with master='emulated'"
        if not settings.use_tpu
        else None,
    )
    misfit = _problem(lambda: tpu.num_replicas(cores))
    yield {"num_cores_per_replica"}, misfit
    if misfit:
        return
    yield (
        {"num_shards", "num_cores_per_replica"},
        _problem(lambda: tpu.check_num_shards(settings.num_shards, num_cores_per_replica=cores)),
    )
    for name in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
        rows = getattr(settings, name)
        if rows is not None:
            check = functools.partial(
                tpu.check_batch_size, rows, num_cores_per_replica=cores, name=name
            )
            yield {name, "num_cores_per_replica"}, _problem(check)


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ValueError as error:
        return str(error)
    return None

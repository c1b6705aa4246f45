"""What must hold between the settings of a training: rules over several of them, and over a whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from tfx_tpu_trainer.components.trainer.json_values import json_problem, shown
from tfx_tpu_trainer.hardware import TpuSpec

RESERVED_PARAMS = ("batch_size", "context", "use_tpu")
"""Keys of model_fn's params that the engine sets itself."""

_BATCH_SIZES = ("train_batch_size", "eval_batch_size", "predict_batch_size")


class Settings(Protocol):
    """The settings that rules speak of, as `TrainSettings` declares them."""

    params: dict[str, Any]
    tpu: TpuSpec | None
    use_tpu: bool
    num_shards: int | None
    num_cores_per_replica: int | None
    export_to_cpu: bool
    export_to_tpu: bool | None
    eval_every_steps: int | None
    eval_every_secs: int | None
    best_metric: str | None
    early_stopping_patience: int | None

    @property
    def preflight(self) -> str:
        """What becomes of a model that does not compile for the slice."""

    @property
    def evaluates_in_training(self) -> bool:
        """Whether there are evaluations before the training ends."""


def broken_rule(settings: Settings, *, deferred: Collection[str] = ()) -> str | None:
    """Returns the first rule that settings break, as a message that names the value and the fix.

    Args:
        settings: The settings, each valid by itself.
        deferred: Names whose values are not known yet: no rule that needs one of them is applied. Defaults to `()`.

    Returns:
        The message; `None` where all rules hold.
    """
    for names, problem in _rules(settings):
        if problem and not names & set(deferred):
            return problem
    return None


def _rules(settings: Settings) -> Iterable[tuple[set[str], str | None]]:
    """Yields, for each rule over a whole or over several settings, their names and the problem."""
    yield {"params"}, _params_problem(settings.params)
    yield (
        {"export_to_cpu", "export_to_tpu"},
        (
            None
            if settings.export_to_cpu or settings.export_to_tpu is not False
            else "export_to_cpu=False and export_to_tpu=False leave nothing to export; set one of them"
        ),
    )
    yield (
        {"eval_every_steps", "eval_every_secs"},
        (
            f"eval_every_steps={settings.eval_every_steps} and eval_every_secs="
            f"{settings.eval_every_secs} are both set; give one of them"
            if settings.eval_every_steps and settings.eval_every_secs
            else None
        ),
    )
    yield (
        {"best_metric", "eval_every_steps", "eval_every_secs"},
        (
            f"best_metric={settings.best_metric!r} needs evaluations during training; give "
            "eval_every_steps or eval_every_secs"
            if settings.best_metric and not settings.evaluates_in_training
            else None
        ),
    )
    yield (
        {"best_metric", "early_stopping_patience"},
        (
            f"early_stopping_patience={settings.early_stopping_patience} needs a metric to watch; "
            "give best_metric"
            if settings.early_stopping_patience and not settings.best_metric
            else None
        ),
    )
    yield (
        {"preflight", "tpu"},
        f"preflight={settings.preflight!r} compiles for a TPU slice, but tpu is not set; give a "
        "slice, such as tpu='v5e:2x4', or leave preflight out"
        if settings.preflight != "off" and settings.tpu is None
        else None,
    )
    yield from _tpu_rules(settings)
    for name in _BATCH_SIZES:
        yield {name, "use_tpu", "num_shards"}, _division_problem(settings, name)


def _division_problem(settings: Settings, name: str) -> str | None:
    rows, shards = getattr(settings, name), settings.num_shards
    if not settings.use_tpu or not rows or not shards or rows % shards == 0:
        return None
    above = -(-rows // shards) * shards
    below = above - shards
    fix = f"{below} or {above}" if below else f"{above}"
    return (
        f"{name}={rows} is not divisible by num_shards={shards}: with use_tpu=True each replica "
        f"gets {name} / num_shards rows; use {fix}"
    )


def _params_problem(params: Mapping[str, Any]) -> str | None:
    for name, value in params.items():
        if name in RESERVED_PARAMS:
            setting = {"batch_size": "train_batch_size"}.get(name)
            fix = f"set {setting} instead" if setting else "rename it"
            return f"params[{name!r}]={shown(value)}: the engine sets this key itself; {fix}"
        if problem := json_problem(value):
            return (
                f"params[{name!r}]={shown(value)} {problem}; give finite numbers, strings, "
                "booleans, None, or lists or dicts of them, or set it in the module's `params`"
            )
    return None


def _tpu_rules(settings: Settings) -> Iterable[tuple[set[str], str | None]]:
    """Yields the rules between a slice and the other settings; none without a slice."""
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
    for name in _BATCH_SIZES:
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

"""Declares the settings of a training, each with type, default, bounds and what depends on it.

Checks, TFX's storage, a training's identity and legacy modules all read these declarations. The arguments of
`TpuTrainer` document each setting; a test compares the two.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any

import pydantic

from tfx_tpu_trainer.components.trainer.values import (
    Flag,
    Folder,
    Master,
    Name,
    NotNegative,
    Params,
    Positive,
    Seed,
    ServedName,
    Sizes,
    Specs,
    Steps,
    Tpu,
    check_names,
    execution_value,
    first_problem,
    json_problem,
    shown,
    stored_as,
)

RESERVED_PARAMS = ("batch_size", "context", "use_tpu")
"""Keys of model_fn's params that the engine sets itself."""

# The password in a URI: between // and @, after the user's name.
_PASSWORD = r"(?<=//)[^/@:]*:[^/@]+(?=@)"
_BATCH_SIZES = ("train_batch_size", "eval_batch_size", "predict_batch_size")


@dataclasses.dataclass(frozen=True)
class About:
    """Facts about a setting beyond its type and default."""

    # Whether it affects checkpoints, so changing it makes another training.
    in_checkpoint: bool = True
    # Why it does not apply to a module that makes its own estimator.
    not_legacy: str = ""


_INPUTS = About(not_legacy="the module's input functions set it")
_ESTIMATOR = About(not_legacy="the module's estimator and RunConfig set it")
_EVALUATIONS = About(
    not_legacy="each checkpoint is evaluated, at most once per EvalSpec(throttle_secs=...), and "
    "the exporters of the EvalSpec decide what is exported"
)
_INPUTS_RUN = dataclasses.replace(_INPUTS, in_checkpoint=False)
_RUN = dataclasses.replace(_ESTIMATOR, in_checkpoint=False)
_SLICES = About(
    in_checkpoint=False,
    not_legacy="give them to the stock Evaluator, which reads Format-Serving",
)
_AFTERWARDS = About(in_checkpoint=False)


class TrainSettings(pydantic.BaseModel):
    """All settings of a training that are given by name instead of by an artifact.

    Use `TrainSettings.parse` for a user's values: its errors are one line each. The docstring of `TpuTrainer` documents
    each setting; its arguments have the same names, types and defaults.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    label_key: Annotated[
        Name | None,
        About(not_legacy="the module's input functions and eval_input_receiver_fn set it"),
    ] = None
    cache_input: Annotated[Flag | None, _INPUTS_RUN] = None
    params: Annotated[
        Params,
        About(
            not_legacy="the module reads your values from trainer_fn_args.custom_config: give "
            "custom_config"
        ),
    ] = {}
    train_batch_size: Annotated[Positive, _INPUTS] = 64
    eval_batch_size: Annotated[Positive | None, _INPUTS] = None
    predict_batch_size: Annotated[Positive | None, _INPUTS_RUN] = None
    iterations_per_loop: Annotated[Positive, _RUN] = 100
    tf_random_seed: Annotated[Seed | None, _ESTIMATOR] = None
    tpu: Annotated[Tpu | None, _RUN] = None
    use_tpu: Annotated[Flag, _RUN] = False
    master: Annotated[Master | None, _RUN] = None
    num_shards: Annotated[Positive | None, _RUN] = None
    num_cores_per_replica: Annotated[Positive | None, _RUN] = None
    start_timeout_secs: Annotated[Positive, _RUN] = 7200
    save_checkpoints_steps: Annotated[Positive | None, _RUN] = None
    keep_checkpoint_max: Annotated[NotNegative, _RUN] = 5
    save_summary_steps: Annotated[NotNegative, _RUN] = 100
    log_step_count_steps: Annotated[Positive, _RUN] = 100
    gradient_norms: Annotated[Flag, _RUN] = False
    histograms: Annotated[Flag, _RUN] = False
    profile_steps: Annotated[Steps | None, _RUN] = None
    slicing_specs: Annotated[Specs, _SLICES] = ()
    max_slices: Annotated[Positive, _SLICES] = 50
    eval_every_steps: Annotated[Positive | None, _EVALUATIONS] = None
    eval_every_secs: Annotated[Positive | None, _EVALUATIONS] = None
    best_metric: Annotated[Name | None, _EVALUATIONS] = None
    best_metric_mode: Annotated[typing.Literal["max", "min"], _EVALUATIONS] = "max"
    early_stopping_patience: Annotated[Positive | None, _EVALUATIONS] = None
    export_to_cpu: Annotated[Flag, _RUN] = True
    export_to_tpu: Annotated[Flag | None, _RUN] = None
    export_saved_model_api_version: Annotated[typing.Literal[1, 2], _RUN] = 1
    preflight: Annotated[
        typing.Literal["off", "warn", "error"],
        About(
            in_checkpoint=False, not_legacy="it compiles the steps of a model_fn before training"
        ),
    ] = "off"
    serving_check: Annotated[typing.Literal["error", "warn", "off"], _AFTERWARDS] = "error"
    serving_check_timeout: Annotated[Positive, _AFTERWARDS] = 300
    serving_model_name: Annotated[ServedName, _AFTERWARDS] = "model"
    warmup_batch_sizes: Annotated[Sizes | None, _AFTERWARDS] = None
    resume: Annotated[Flag, _AFTERWARDS] = True
    checkpoint_root: Annotated[Folder | None, _AFTERWARDS] = None
    save_input_position: Annotated[Flag | None, _RUN] = None
    stall_timeout_secs: Annotated[NotNegative, _AFTERWARDS] = 1800
    mlflow_tracking_uri: Annotated[Folder | None, _AFTERWARDS] = None
    mlflow_experiment: Annotated[Name | None, _AFTERWARDS] = None

    @classmethod
    def parse(
        cls, values: Mapping[str, Any], *, deferred: Collection[str] = (), source: str = ""
    ) -> TrainSettings:
        """Checks values and makes settings from them.

        Args:
            values: Values by name. A name that is absent, or whose value is `None`, takes its default. Booleans may be
                0 and 1, and `params` may be JSON text.
            deferred: Names whose values are not known yet (runtime parameters without a default):
                they keep their defaults, and no rule that needs them is applied.
            source: Where the values come from; error messages begin with it.

        Returns:
            The settings.

        Raises:
            ValueError: If a name is unknown or a value is invalid; names the value and the fix.
        """
        where = f"{source}: " if source else ""
        check_names(values, cls.model_fields, where)
        known = {k: v for k, v in values.items() if v is not None and k not in deferred}
        known.setdefault("use_tpu", "tpu" in known)
        try:
            settings = cls.model_validate(known)
        except pydantic.ValidationError as error:
            raise ValueError(where + first_problem(error)) from None
        problem = broken_rule(settings, deferred=deferred)
        if problem:
            raise ValueError(where + problem)
        if settings.tpu is None or {"num_shards", "num_cores_per_replica"} & set(deferred):
            return settings
        replicas = settings.tpu.num_replicas(settings.num_cores_per_replica)
        return settings.model_copy(update={"num_shards": replicas})

    @classmethod
    def execution_types(cls) -> dict[str, type]:
        """Returns the type of each setting as a TFX execution property.

        Returns:
            `int` or `str` by name. Booleans are `int`; `params`, `tpu`, `profile_steps`,
            `slicing_specs` and `warmup_batch_sizes` are `str` (JSON).
        """
        return {name: stored_as(field.annotation) for name, field in cls.model_fields.items()}

    @classmethod
    def about(cls, name: str) -> About:
        """Returns whether a setting is part of the training's identity, and why legacy modules reject it."""
        return next(each for each in cls.model_fields[name].metadata if isinstance(each, About))

    def to_exec_properties(self) -> dict[str, int | str | None]:
        """Returns the settings as TFX execution properties.

        Returns:
            Values by name; `params` as JSON with sorted keys, so equal params meet the same
            entry of TFX's cache.
        """
        return {name: execution_value(getattr(self, name)) for name in type(self).model_fields}

    @property
    def requires_tpu_graph(self) -> bool:
        """Whether a model that no TPU can run is rejected instead of being exported for CPU hosts only."""
        if self.export_to_tpu is None:
            return self.use_tpu or not self.export_to_cpu
        return self.export_to_tpu

    @property
    def rows_per_eval_batch(self) -> int:
        """The evaluation's batch size with defaults resolved."""
        return self.eval_batch_size or self.train_batch_size

    @property
    def evaluates_in_training(self) -> bool:
        """Whether there are evaluations before the training ends."""
        return bool(self.eval_every_steps or self.eval_every_secs)

    @property
    def rows_per_predict_batch(self) -> int:
        """The prediction's batch size with defaults resolved."""
        return self.predict_batch_size or self.rows_per_eval_batch


def broken_rule(settings: TrainSettings, *, deferred: Collection[str] = ()) -> str | None:
    """Returns the first rule that settings violate, as a message that names the value and the fix.

    Args:
        settings: The settings, each valid by itself.
        deferred: Names whose values are not known yet: no rule that needs one of them is applied. Defaults to `()`.

    Returns:
        The message; `None` if all rules hold.
    """
    for names, problem in _rules(settings):
        if problem and not names & set(deferred):
            return problem
    return None


def _rules(settings: TrainSettings) -> Iterable[tuple[set[str], str | None]]:
    """Yields the problem of each violated rule over one or several settings, with their names."""
    yield {"params"}, _params_problem(settings.params)
    if not settings.export_to_cpu and settings.export_to_tpu is False:
        yield (
            {"export_to_cpu", "export_to_tpu"},
            "export_to_cpu=False and export_to_tpu=False leave nothing to export; set one of them",
        )
    if settings.eval_every_steps and settings.eval_every_secs:
        problem = (
            f"eval_every_steps={settings.eval_every_steps} and eval_every_secs="
            f"{settings.eval_every_secs} are both set; give one of them"
        )
        yield {"eval_every_steps", "eval_every_secs"}, problem
    if settings.best_metric and not settings.evaluates_in_training:
        problem = (
            f"best_metric={settings.best_metric!r} needs evaluations during training; give "
            "eval_every_steps or eval_every_secs"
        )
        yield {"best_metric", "eval_every_steps", "eval_every_secs"}, problem
    if settings.early_stopping_patience and not settings.best_metric:
        problem = (
            f"early_stopping_patience={settings.early_stopping_patience} needs a metric to watch; "
            "give best_metric"
        )
        yield {"best_metric", "early_stopping_patience"}, problem
    if settings.preflight != "off" and settings.tpu is None:
        problem = (
            f"preflight={settings.preflight!r} compiles for a TPU slice, but tpu is not set; give a "
            "slice, such as tpu='v5e:2x4', or leave preflight out"
        )
        yield {"preflight", "tpu"}, problem
    store = settings.mlflow_tracking_uri or ""
    if re.search(_PASSWORD, store):
        problem = (
            f"mlflow_tracking_uri={shown(re.sub(_PASSWORD, '...', store))} has a password, which ML "
            "Metadata and the training's page would show; set MLFLOW_TRACKING_URI in the trainer's "
            "environment instead, and give mlflow_experiment"
        )
        yield {"mlflow_tracking_uri"}, problem
    yield from _tpu_rules(settings)
    for name in _BATCH_SIZES:
        yield {name, "use_tpu", "num_shards"}, _division_problem(settings, name)


def _division_problem(settings: TrainSettings, name: str) -> str | None:
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


def _tpu_rules(settings: TrainSettings) -> Iterable[tuple[set[str], str | None]]:
    """Yields the problems between a slice and the other settings; none without a slice."""
    tpu, cores = settings.tpu, settings.num_cores_per_replica
    if tpu is None:
        return
    if not settings.use_tpu:
        problem = (
            f"use_tpu=False contradicts tpu={tpu.slice_name!r}; leave one of them out, or emulate the "
            "cores of that slice on this host with master='emulated'"
        )
        yield {"use_tpu"}, problem
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

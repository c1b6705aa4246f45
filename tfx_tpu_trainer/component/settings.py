"""TrainSettings: the typed parameters of a TpuTrainer, checked."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

import pydantic

from tfx_tpu_trainer.component.names import suggest
from tfx_tpu_trainer.component.tpu_rules import tpu_rules
from tfx_tpu_trainer.evaluation.slicing_specs import parse_slicing_specs, slicing_specs_to_json
from tfx_tpu_trainer.hardware import TpuSpec

RESERVED_PARAMS = ("batch_size", "context", "use_tpu")
"""Keys of model_fn's params that the engine sets itself."""

_TEXTS = (
    "label_key",
    "master",
    "params",
    "tpu",
    "preflight",
    "serving_check",
    "serving_model_name",
    "warmup_batch_sizes",
    "slicing_specs",
    "best_metric",
    "best_metric_mode",
    "checkpoint_root",
)


def _from_flag(value: Any) -> Any:
    # Execution properties and RuntimeParameters know no booleans: TFX stores 0 and 1.
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"give a JSON object; {error}") from None


def _sizes_from_json(value: Any) -> Any:
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"give a JSON list of integers; {error}") from None
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("give a list of integers above 0, as [1, 8]")
    return tuple(value)


def _specs_from_json(value: Any) -> Any:
    return tuple(slicing_specs_to_json(parse_slicing_specs(value)))


Flag = Annotated[bool, pydantic.BeforeValidator(_from_flag)]
Positive = Annotated[int, pydantic.Field(gt=0)]
NotNegative = Annotated[int, pydantic.Field(ge=0)]
Params = Annotated[dict[str, Any], pydantic.BeforeValidator(_from_json)]
Specs = Annotated[tuple[dict[str, Any], ...], pydantic.BeforeValidator(_specs_from_json)]
Tpu = Annotated[TpuSpec, pydantic.BeforeValidator(TpuSpec.read)]
Sizes = Annotated[tuple[Positive, ...], pydantic.BeforeValidator(_sizes_from_json)]


class TrainSettings(pydantic.BaseModel):
    """Everything about a training that is set by name and not by an artifact.

    Use `TrainSettings.parse` to make one from values of a user: its errors are one line each.

    Attributes:
        label_key: Transformed feature that is the label. Needed by the default input functions.
        params: Values for model_fn's `params`, JSON types only.
        train_batch_size: Rows of a training step, over all cores.
        eval_batch_size: Rows of an evaluation batch; `None` takes `train_batch_size`.
        predict_batch_size: Rows of a prediction batch; `None` takes the evaluation's.
        tpu: The TPU slice to train on, or `None`. It decides `use_tpu` and `num_shards`.
        use_tpu: Train on TPU cores; `master` says where they are. Not given, it is whether there
            is a `tpu`.
        master: Address of the TPU's master, or "emulated" for emulated cores on this host.
        num_shards: Number of model replicas. `None` takes those of `tpu`, or lets the engine
            decide.
        num_cores_per_replica: Cores that one replica is spread over; `None` is one.
        iterations_per_loop: Training steps in one session call when `use_tpu` is set.
        save_checkpoints_steps: Steps between checkpoints; `None` saves every 600 seconds.
        keep_checkpoint_max: Checkpoints kept in model_run; 0 keeps all.
        save_summary_steps: Steps between summaries for TensorBoard; 0 writes none.
        log_step_count_steps: Steps between log lines of the loss and steps per second.
        tf_random_seed: Seed of the graph; `None` takes another one in each run.
        export_to_cpu: Write the metagraph tagged `serve`.
        export_to_tpu: Write the metagraph tagged `serve`, `tpu`.
        export_saved_model_api_version: 1 (the engine rewrites model_fn for the TPU) or 2
            (model_fn does so itself).
        preflight: What becomes of a model that does not compile for `tpu` or does not fit it:
            "error" ends the component before anything is trained, "warn" says so in the log, "off"
            does not ask the TPU compiler.
        serving_check: What becomes of an exported model that fails its check: "error" fails the
            training, "warn" says so in the log, "off" checks nothing.
        serving_check_timeout: Seconds that the check may take to load and run one metagraph.
        serving_model_name: Name under which the model will be served.
        warmup_batch_sizes: Rows of the warm-up requests; `None` takes the sizes that the exported
            model pads its batches to, or 1.
        slicing_specs: Slices of the eval split to measure beside the whole; TFMA's SlicingSpec,
            each as a dict.
        max_slices: Most slices of one spec; the rows of further ones are measured together.
        eval_every_steps: Steps between evaluations during training; `None` makes none.
        eval_every_secs: Seconds of training between evaluations, in place of steps.
        best_metric: Metric by which the best checkpoint is kept and exported; `None` exports the
            last one.
        best_metric_mode: "max" if a higher value of it is better, "min" if a lower one is.
        early_stopping_patience: Evaluations without a better value after which training stops.
        resume: Whether another attempt at the same training goes on from its last checkpoint.
        checkpoint_root: Folder, the pipeline's own, of the checkpoints of trainings that have not
            ended; `None` puts them beside the component's artifacts, where TFX tells the place.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    label_key: str | None = pydantic.Field(default=None, min_length=1)
    params: Params = {}
    train_batch_size: Positive = 64
    eval_batch_size: Positive | None = None
    predict_batch_size: Positive | None = None
    tpu: Tpu | None = None
    use_tpu: Flag = False
    master: str | None = pydantic.Field(default=None, min_length=1)
    num_shards: Positive | None = None
    num_cores_per_replica: Positive | None = None
    iterations_per_loop: Positive = 100
    save_checkpoints_steps: Positive | None = None
    keep_checkpoint_max: NotNegative = 5
    save_summary_steps: NotNegative = 100
    log_step_count_steps: Positive = 100
    tf_random_seed: int | None = None
    export_to_cpu: Flag = True
    export_to_tpu: Flag = True
    export_saved_model_api_version: typing.Literal[1, 2] = 1
    preflight: typing.Literal["off", "warn", "error"] = "off"
    serving_check: typing.Literal["error", "warn", "off"] = "error"
    serving_check_timeout: Positive = 300
    serving_model_name: str = pydantic.Field(default="model", min_length=1)
    warmup_batch_sizes: Sizes | None = None
    slicing_specs: Specs = ()
    max_slices: Positive = 50
    eval_every_steps: Positive | None = None
    eval_every_secs: Positive | None = None
    best_metric: str | None = pydantic.Field(default=None, min_length=1)
    best_metric_mode: typing.Literal["max", "min"] = "max"
    early_stopping_patience: Positive | None = None
    resume: Flag = True
    checkpoint_root: str | None = pydantic.Field(default=None, min_length=1)

    @classmethod
    def parse(
        cls, values: Mapping[str, Any], *, deferred: Collection[str] = (), source: str = ""
    ) -> TrainSettings:
        """Checks values and makes settings of them.

        Args:
            values: Values by name. A name that is absent, or whose value is `None`, takes its
                default. Booleans may be 0 and 1, `params` may be a JSON text.
            deferred: Names whose values are not known yet (runtime parameters without a default):
                they keep their defaults, and no rule that needs them is applied.
            source: Where the values come from, put in front of an error message.

        Returns:
            The settings.

        Raises:
            ValueError: A name is unknown or a value doesn't fit; names the value and the fix.
        """
        where = f"{source}: " if source else ""
        for name in values:
            if name not in cls.model_fields:
                raise ValueError(
                    f"{where}unknown setting {name!r}; {suggest(name, cls.model_fields)}"
                )
        known = {k: v for k, v in values.items() if v is not None and k not in deferred}
        known.setdefault("use_tpu", "tpu" in known)
        try:
            settings = cls.model_validate(known)
        except pydantic.ValidationError as error:
            raise ValueError(where + _one_line(error)) from None
        for names, problem in _rules(settings):
            if problem and not names & set(deferred):
                raise ValueError(where + problem)
        if settings.tpu is None or {"num_shards", "num_cores_per_replica"} & set(deferred):
            return settings
        replicas = settings.tpu.num_replicas(settings.num_cores_per_replica)
        return settings.model_copy(update={"num_shards": replicas})

    @classmethod
    def execution_types(cls) -> dict[str, type]:
        """Gives the type of each setting as a TFX execution property.

        Returns:
            `int` or `str` by name. Booleans are `int`; `params`, `tpu`, `slicing_specs` and
            `warmup_batch_sizes` are `str` (JSON).
        """
        return {name: str if name in _TEXTS else int for name in cls.model_fields}

    def to_exec_properties(self) -> dict[str, int | str | None]:
        """Gives the settings as TFX execution properties.

        Returns:
            Values by name; `params` as JSON with sorted keys, so that equal params meet the same
            entry of TFX's cache.
        """
        return {name: execution_value(getattr(self, name)) for name in type(self).model_fields}

    @property
    def rows_per_eval_batch(self) -> int:
        """The evaluation's batch size, defaults resolved."""
        return self.eval_batch_size or self.train_batch_size

    @property
    def evaluates_in_training(self) -> bool:
        """Whether there are evaluations before the training ends."""
        return bool(self.eval_every_steps or self.eval_every_secs)

    @property
    def rows_per_predict_batch(self) -> int:
        """The prediction's batch size, defaults resolved."""
        return self.predict_batch_size or self.rows_per_eval_batch


def execution_value(value: Any) -> int | str | None:
    """Gives one setting's value in the form that TFX stores.

    Args:
        value: A value of `TrainSettings`.

    Returns:
        0 or 1 for a boolean, JSON for a mapping, a sequence or a TPU slice, everything else as it is.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, TpuSpec):
        return value.to_json()
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    if isinstance(value, (list, tuple)):
        return json.dumps(value, separators=(",", ":"))
    return value


def _rules(settings: TrainSettings) -> Iterable[tuple[set[str], str | None]]:
    """Yields, for each rule over a whole or over several settings, their names and the problem."""
    yield {"params"}, _params_problem(settings.params)
    yield (
        {"export_to_cpu", "export_to_tpu"},
        (
            None
            if settings.export_to_cpu or settings.export_to_tpu
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
        f"preflight={settings.preflight!r} compiles for a TPU slice, and none is given; give "
        "tpu='v5e:2x4', for one, or leave preflight out"
        if settings.preflight != "off" and settings.tpu is None
        else None,
    )
    yield from tpu_rules(settings)
    for name in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
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
            return f"params[{name!r}]={value!r}: the engine sets this key itself; {fix}"
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return (
                f"params[{name!r}]={value!r} is no JSON value; give finite numbers, texts, "
                f"booleans, None, lists or dicts of them, or set it in the module's `params`"
            )
    return None


_FIXES: Mapping[str, str] = types.MappingProxyType(
    {
        "greater_than": "give an integer above 0",
        "greater_than_equal": "give 0 or a positive integer",
        "int_type": "give an integer",
        "bool_type": "give True or False",
        "string_type": "give a text",
        "string_too_short": "give a name, or None",
        "dict_type": "give a dict with texts as keys",
    }
)


def _one_line(error: pydantic.ValidationError) -> str:
    """Puts the first of pydantic's findings in one line."""
    first = error.errors()[0]
    name, value = first["loc"][0], first["input"]
    fix = _FIXES.get(first["type"], first["msg"].removeprefix("Value error, "))
    if first["type"] == "literal_error":
        fix = f"give {first['ctx']['expected']}"
    return f"{name}={value!r} is not valid; {fix}"

"""The parameters of a TpuTrainer, each declared once: type, default, bounds, unit and what it is for.

The component's specification, its constructor's signature and documentation, the checks of values, the table in
docs/component.md, what makes two trainings the same one, and what a legacy module refuses are all read from here.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import pydantic

from tfx_tpu_trainer.components.trainer.json_values import shown
from tfx_tpu_trainer.components.trainer.names import suggest
from tfx_tpu_trainer.components.trainer.parameter_rules import broken_rule
from tfx_tpu_trainer.components.trainer.parameter_values import (
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
    execution_value,
    first_problem,
    stored_as,
)

# In the order in which a reader meets them.
DATA = "Data"
MODEL = "Model"
STEPS = "Steps and batches"
HARDWARE = "Hardware"
CHECKPOINTS = "Checkpoints and logs"
EVALUATION = "Evaluation"
EXPORT = "Export and serving"
RESUME = "Resume"
GROUPS = (DATA, MODEL, STEPS, HARDWARE, CHECKPOINTS, EVALUATION, EXPORT, RESUME)


@dataclasses.dataclass(frozen=True)
class About:
    """What a parameter's type and default don't say.

    Attributes:
        text: What it is for, with its unit: one or two sentences.
        group: One of `GROUPS`.
        default: What stands for the default in the documentation. Defaults to `""`: the value itself.
        in_checkpoint: Whether it leaves a trace in checkpoints, and so makes another training. Defaults to `True`.
        not_legacy: Why it means nothing to a module that makes its own estimator. Defaults to `""`: it does.
        given_as: What the constructor takes. Defaults to `""`: the type itself, or a runtime parameter.
    """

    text: str
    group: str
    default: str = ""
    in_checkpoint: bool = True
    not_legacy: str = ""
    given_as: str = ""


_INPUTS_SAY = "the module's input functions decide it"
_ESTIMATOR_SAYS = "the module's estimator and RunConfig decide it"
_SPEC_SAYS = (
    "each checkpoint is evaluated, at most once per EvalSpec(throttle_secs=...), and the "
    "exporters of the EvalSpec decide what is exported"
)
_EVALUATOR_DOES = "give them to the stock Evaluator, which reads Format-Serving"


class TrainSettings(pydantic.BaseModel):
    """Everything about a training that is set by name and not by an artifact.

    Use `TrainSettings.parse` to make one from values of a user: its errors are one line each.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    label_key: Annotated[
        Name | None,
        About(
            "Name of the transformed feature that is the label. Required unless the module has an "
            "`input_fn` or its model_fn takes no labels.",
            DATA,
            not_legacy="the module's input functions and eval_input_receiver_fn decide it",
        ),
    ] = None
    cache_input: Annotated[
        Flag | None,
        About(
            "Parse the training rows once and keep them for all epochs: in memory, up to a "
            "quarter of what is available, or else on local disk (TMPDIR), up to half of what is "
            "free. False parses them in every epoch. Only for modules without an `input_fn`.",
            DATA,
            default="`True` if `num_steps` reaches a second epoch",
            in_checkpoint=False,
            not_legacy=_INPUTS_SAY,
        ),
    ] = None
    params: Annotated[
        Params,
        About(
            "JSON values for model_fn's `params`; they override the module's own `params`.",
            MODEL,
            default="`{}`",
            not_legacy="the module reads your values from trainer_fn_args.custom_config: give "
            "custom_config",
            given_as="Mapping[str, Any]",
        ),
    ] = {}
    train_batch_size: Annotated[
        Positive,
        About("Rows of a training step, over all cores.", STEPS, not_legacy=_INPUTS_SAY),
    ] = 64
    eval_batch_size: Annotated[
        Positive | None,
        About(
            "Rows of an evaluation batch.",
            STEPS,
            default="`train_batch_size`",
            not_legacy=_INPUTS_SAY,
        ),
    ] = None
    predict_batch_size: Annotated[
        Positive | None,
        About(
            "Rows of a prediction batch.",
            STEPS,
            default="the evaluation's",
            in_checkpoint=False,
            not_legacy=_INPUTS_SAY,
        ),
    ] = None
    iterations_per_loop: Annotated[
        Positive,
        About(
            "Training steps in one session call with `use_tpu`.",
            STEPS,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = 100
    tf_random_seed: Annotated[
        Seed | None,
        About(
            "Seed of the graph and of the shuffling.",
            STEPS,
            default="RunConfig's",
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = None
    tpu: Annotated[
        Tpu | None,
        About(
            'The TPU slice to train on, a TpuSpec or a name ("v5e:2x4"). It sets `use_tpu` and '
            "`num_shards`, is checked against the batch sizes, and is requested from the cluster "
            "by the runners in `kubeflow/`. Without such a TPU, emulate its cores with "
            '`master="emulated"` or TFX_TPU_TRAINER_EMULATE=1.',
            HARDWARE,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
            given_as="TpuSpec | str",
        ),
    ] = None
    use_tpu: Annotated[
        Flag,
        About(
            "Train on TPU cores. `master` says where they are; the environment variable "
            "TFX_TPU_TRAINER_EMULATE=1 emulates them.",
            HARDWARE,
            default="`True` if `tpu` is set",
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = False
    master: Annotated[
        Master | None,
        About(
            'Address of the TPU\'s master, or "emulated" for emulated cores on this host.',
            HARDWARE,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = None
    num_shards: Annotated[
        Positive | None,
        About(
            "Number of model replicas.",
            HARDWARE,
            default="the number that `tpu` has, else chosen by the engine",
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = None
    num_cores_per_replica: Annotated[
        Positive | None,
        About(
            "Number of cores that one replica is spread over.",
            HARDWARE,
            default="one",
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = None
    start_timeout_secs: Annotated[
        Positive,
        About(
            "Seconds that each of several hosts waits for the others to start.",
            HARDWARE,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = 7200
    save_checkpoints_steps: Annotated[
        Positive | None,
        About(
            "Steps between checkpoints. The last step is always saved.",
            CHECKPOINTS,
            default="after 60 seconds, then at intervals that double up to 600 seconds",
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = None
    keep_checkpoint_max: Annotated[
        NotNegative,
        About(
            "Number of checkpoints to keep; 0 keeps all.",
            CHECKPOINTS,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = 5
    save_summary_steps: Annotated[
        NotNegative,
        About(
            "Steps between summaries for TensorBoard; 0 writes none.",
            CHECKPOINTS,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = 100
    log_step_count_steps: Annotated[
        Positive,
        About(
            "Steps between log lines of loss and speed.",
            CHECKPOINTS,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = 100
    gradient_norms: Annotated[
        Flag,
        About(
            "Write the global gradient norm and each variable's with the summaries; see "
            "docs/tensorboard.md.",
            CHECKPOINTS,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = False
    histograms: Annotated[
        Flag,
        About(
            "Write histograms of gradients and weights with the summaries.",
            CHECKPOINTS,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = False
    profile_steps: Annotated[
        Steps | None,
        About(
            "The first and the last training step to profile for TensorBoard's profile plugin, as `(100, 105)`.",
            CHECKPOINTS,
            default="none",
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
            given_as="tuple[int, int]",
        ),
    ] = None
    slicing_specs: Annotated[
        Specs,
        About(
            "Slices of the eval split to measure in addition to the whole, with the same "
            "metric_fn in the same pass: tfma.SlicingSpec, or dicts with `feature_keys` and "
            "`feature_values`. They name features of Transform's output, the label, or, with "
            "`raw_examples`, raw features.",
            EVALUATION,
            in_checkpoint=False,
            not_legacy=_EVALUATOR_DOES,
            given_as="Sequence[tfma.SlicingSpec | Mapping[str, Any]]",
        ),
    ] = ()
    max_slices: Annotated[
        Positive,
        About(
            "Largest number of slices per spec; the rows of all further values are measured "
            "together as `__OTHER__`.",
            EVALUATION,
            in_checkpoint=False,
            not_legacy=_EVALUATOR_DOES,
        ),
    ] = 50
    eval_every_steps: Annotated[
        Positive | None,
        About(
            "Evaluate at every multiple of this step during training: the learning curve.",
            EVALUATION,
            not_legacy=_SPEC_SAYS,
        ),
    ] = None
    eval_every_secs: Annotated[
        Positive | None,
        About(
            "Seconds of training between evaluations; replaces `eval_every_steps`.",
            EVALUATION,
            not_legacy=_SPEC_SAYS,
        ),
    ] = None
    best_metric: Annotated[
        Name | None,
        About(
            "Metric that selects the best checkpoint, which is kept and exported at the end.",
            EVALUATION,
            default="none: the last checkpoint is exported",
            not_legacy=_SPEC_SAYS,
        ),
    ] = None
    best_metric_mode: Annotated[
        typing.Literal["max", "min"],
        About(
            '"max" if a higher value of `best_metric` is better, "min" if a lower one is.',
            EVALUATION,
            not_legacy=_SPEC_SAYS,
        ),
    ] = "max"
    early_stopping_patience: Annotated[
        Positive | None,
        About(
            "Number of consecutive evaluations without improvement after which training stops.",
            EVALUATION,
            default="none: training runs to its last step",
            not_legacy=_SPEC_SAYS,
        ),
    ] = None
    export_to_cpu: Annotated[
        Flag,
        About(
            "Write the metagraph `serve`.",
            EXPORT,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = True
    export_to_tpu: Annotated[
        Flag | None,
        About(
            "Write the metagraph `serve`, `tpu`. A model that no TPU can run is refused before the "
            "first step.",
            EXPORT,
            default="`True`; without `use_tpu`, a model that no TPU can run is exported without it, "
            "with a warning",
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = None
    export_saved_model_api_version: Annotated[
        typing.Literal[1, 2],
        About(
            "1: the engine rewrites model_fn for the TPU; 2: model_fn does so itself.",
            EXPORT,
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = 1
    preflight: Annotated[
        typing.Literal["off", "warn", "error"],
        About(
            'Whether to compile the model for `tpu` before training. "error" fails the '
            'component if the model does not compile or does not fit, "warn" only logs it, '
            '"off" skips the compilation. Needs the extra `preflight`; see docs/preflight.md.',
            EXPORT,
            in_checkpoint=False,
            not_legacy="it compiles the steps of a model_fn before training",
        ),
    ] = "off"
    serving_check: Annotated[
        typing.Literal["error", "warn", "off"],
        About(
            'Whether to check the exported model. "error" fails the training if the model fails '
            'its check, "warn" only logs it, "off" skips the check.',
            EXPORT,
            in_checkpoint=False,
        ),
    ] = "error"
    serving_check_timeout: Annotated[
        Positive,
        About(
            "Seconds that the check may take to load and run one metagraph.",
            EXPORT,
            in_checkpoint=False,
        ),
    ] = 300
    serving_model_name: Annotated[
        ServedName,
        About("Name under which the model will be served.", EXPORT, in_checkpoint=False),
    ] = "model"
    warmup_batch_sizes: Annotated[
        Sizes | None,
        About(
            "Numbers of rows in the warm-up requests.",
            EXPORT,
            default="the sizes to which the model pads its batches, or 1",
            in_checkpoint=False,
            given_as="Sequence[int]",
        ),
    ] = None
    resume: Annotated[
        Flag,
        About(
            "Let another attempt at the same training resume from its last checkpoint.",
            RESUME,
            in_checkpoint=False,
        ),
    ] = True
    checkpoint_root: Annotated[
        Folder | None,
        About(
            "Folder that holds the checkpoints until the training has ended; it must belong to "
            "this pipeline only. Set it under Kubeflow and Vertex AI, where a new attempt "
            "otherwise trains from scratch.",
            RESUME,
            default="`checkpoints`, next to the component's artifacts",
            in_checkpoint=False,
        ),
    ] = None
    save_input_position: Annotated[
        Flag | None,
        About(
            "Save the position of the training input with each checkpoint, so that another "
            "attempt continues with the next rows. For a module with its own `input_fn`, set it "
            "to True yourself: state in the function's Python code is not saved.",
            RESUME,
            default="`True` if the module has no `input_fn`",
            in_checkpoint=False,
            not_legacy=_ESTIMATOR_SAYS,
        ),
    ] = None
    stall_timeout_secs: Annotated[
        NotNegative,
        About(
            "Seconds without a step, in training or evaluation, after which the attempt logs the "
            "stacks of all Python threads and ends, so that another one can resume; 0 waits "
            "forever. The time of the first step includes building and compiling the model.",
            RESUME,
            in_checkpoint=False,
        ),
    ] = 1800

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
        if not isinstance(values, Mapping):
            raise ValueError(
                f"{where}{shown(values)} is not valid; give a dict of settings by name"
            )
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
        """Returns what a setting is for.

        Args:
            name: The setting's name.
        """
        return next(each for each in cls.model_fields[name].metadata if isinstance(each, About))

    def to_exec_properties(self) -> dict[str, int | str | None]:
        """Returns the settings as TFX execution properties.

        Returns:
            Values by name; `params` as JSON with sorted keys, so that equal params meet the same
            entry of TFX's cache.
        """
        return {name: execution_value(getattr(self, name)) for name in type(self).model_fields}

    @property
    def requires_tpu_graph(self) -> bool:
        """Whether a model that no TPU can run is refused, rather than exported for CPU hosts only."""
        if self.export_to_tpu is None:
            return self.use_tpu or not self.export_to_cpu
        return self.export_to_tpu

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

"""Defines typed, validated pipeline configs: frozen objects that `config_file.py` reads from YAML and options."""

from __future__ import annotations

import re
import reprlib
import typing
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, ConfigDict, Field

from tfx_tpu_trainer.components import TrainSettings, broken_rule, plain_type
from tfx_tpu_trainer.components.clusters import Pods, VertexJob
from tfx_tpu_trainer.workbench.project.beam import check_beam_arguments

# A message quotes a value up to this length.
_MAX_SHOWN = 200
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel = 4
_SHOWN.maxdict = _SHOWN.maxlist = _SHOWN.maxtuple = 20
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = _MAX_SHOWN


# The limit of ML Metadata and TensorFlow's ops.
_LARGEST = 2**31 - 1
_LARGEST_SEED = 2**63 - 1
_PIPELINE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,127}")


class ConfigError(ValueError):
    """An invalid config; the message names each bad value, its place and the fix."""


def shown(value: Any) -> str:
    """Quotes a value for a message."""
    return cut(_SHOWN.repr(value))


def cut(text: str) -> str:
    """Shortens a text for a message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _pipeline_name(name: str) -> str:
    if not _PIPELINE_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid pipeline name; give up to 128 lower-case letters, digits, '_' "
            "and '-', starting with a letter"
        )
    return name


def _folder(path: str) -> str:
    if not path.strip() or "\0" in path:
        raise ValueError(
            f"{path!r} is not a path; give a folder, locally or in a bucket, such as "
            "gs://bucket/taxi"
        )
    return path


def _import_path(path: str) -> str:
    if path and not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{path!r} is not an import path; give one such as pipelines.taxi.model")
    return path


Count = Annotated[int, Field(gt=0, le=_LARGEST)]
"""A whole number above 0: steps, rows, units."""

Rate = Annotated[float, Field(gt=0)]
"""A number above 0."""

Seed = Annotated[int, Field(ge=-_LARGEST_SEED, le=_LARGEST_SEED)]
"""A seed of random numbers."""

Text = Annotated[str, Field(min_length=1)]
"""A string that is not empty."""

PipelineName = Annotated[str, AfterValidator(_pipeline_name)]
"""A name that ML Metadata, folders and clusters accept."""

Folder = Annotated[str, AfterValidator(_folder)]
"""A path on this machine, or in a bucket."""

ImportPath = Annotated[str, AfterValidator(_import_path)]
"""An import path, or an empty string."""

Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A YAML list as a tuple: strict models reject lists for tuples, and a frozen config needs tuples."""


class Settings(pydantic.BaseModel):
    """Base class of every group of settings: frozen, no unknown keys, no silent conversion of types, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SliceSettings(Settings):
    """Slices of the eval split, as in tfma.SlicingSpec.

    Attributes:
        feature_keys: Features; each of their values makes a slice.
        feature_values: Features with one value in the slice -> that value, as text.
    """

    feature_keys: Strings = ()
    feature_values: dict[str, str] = {}


_FLAGS = tuple(
    name
    for name, field in TrainSettings.model_fields.items()
    if plain_type(field.annotation) is bool and name != "use_tpu"
)


class TrainerSettings(TrainSettings):
    """Settings of `TpuTrainer`, except the model's own.

    docs/component.md lists them. These differ from the component's:

    Attributes:
        label_key: Required, but may be null.
        module: Import path of the module with `model_fn` or `build_model`. Exactly one of `module`, `module_file` and
            `trainer_fn` is given.
        module_file: Path of a `.py` file with `model_fn` or `build_model`; TFX packages its whole folder as a wheel.
        trainer_fn: Import path of a function `trainer_fn` (docs/legacy.md).
        restore_tf_estimator: Whether a module with a trainer_fn finds `tf.estimator`.
        custom_config: Values for a trainer_fn's `custom_config`.
        train_steps: Training steps: `num_steps` of `train_args`.
        train_splits: Splits to train on; `train` if there are none.
        eval_steps: Evaluation batches; null for the whole eval split.
        eval_splits: Splits to evaluate; `eval` if there are none.
        tpu: The TPU slice to train on, as `v5e:2x4` or as `{slice_name: v5e:2x4, spot: true}`. `compile` requests it
            from the cluster; without a TPU, `master: emulated` emulates it.
        use_tpu: Whether to train on TPU cores, whose address is `master`; if null, whether `tpu` is set.
        tf_random_seed: Seed of the variables' initial values and of every unseeded op in the model.
        slicing_specs: The slices to measure, such as `[{feature_keys: [payment_type]}]`.
        export_to_tpu: Whether the export has a graph for TPU hosts in addition to that for CPU hosts. If it is null,
            whether it trains on TPU cores: `tf.saved_model.load` opens a model with one graph without `tags`.
        params: Values for the model_fn's `params`; they win over the pipeline's, such as those of `model`.
        checkpoint_root: Folder of checkpoints until their training has ended; `<root>/checkpoints/<name>` if it is
            null.
    """

    model_config = Settings.model_config

    label_key: Text | None
    module: ImportPath | None = None
    module_file: str | None = None
    trainer_fn: ImportPath | None = None
    restore_tf_estimator: bool = True
    custom_config: dict[str, Any] | None = None
    train_steps: Count
    train_splits: Strings = ()
    eval_steps: Count | None = None
    eval_splits: Strings = ()
    use_tpu: bool | None = None  # type: ignore[assignment]
    tf_random_seed: Seed | None = None
    slicing_specs: Annotated[tuple[SliceSettings, ...], pydantic.Field(strict=False)] = ()  # type: ignore[assignment]

    @pydantic.field_validator(*_FLAGS, mode="before")
    @classmethod
    def _is_flag(cls, value: Any) -> Any:
        # TFX stores booleans as 0 and 1; users don't write them that way.
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{shown(value)} is not a boolean; give true or false")
        return value

    @pydantic.model_validator(mode="after")
    def _one_module(self) -> TrainerSettings:
        given = (self.module, self.module_file, self.trainer_fn)
        if sum(map(bool, given)) != 1:
            raise ValueError(
                "exactly one of 'module' (an import path), 'module_file' (a .py file) and 'trainer_fn' (an import "
                f"path) must be given, got module={self.module!r}, module_file={self.module_file!r} and "
                f"trainer_fn={self.trainer_fn!r}; set the others to null"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _rules_hold(self) -> TrainerSettings:
        # With a trainer_fn, most settings have no meaning; unset ones do no harm.
        update = {"use_tpu": self._on_tpu}
        resolved = typing.cast(TrainSettings, self.model_copy(update=update))
        if problem := broken_rule(resolved):
            raise ValueError(problem)
        return self

    @property
    def _on_tpu(self) -> bool:
        return self.tpu is not None if self.use_tpu is None else self.use_tpu

    def needed_to_compare_answers(self) -> str:
        """Returns the change without which no serving check compares two graphs' answers; '' if there is none."""
        if self.serving_check == "off":
            return "set trainer.serving_check to warn or error"
        # A trainer_fn's estimator decides itself what it exports.
        if self.trainer_fn is not None:
            return ""
        if not self.export_to_cpu:
            return "set trainer.export_to_cpu to true"
        for_tpu = self._on_tpu if self.export_to_tpu is None else self.export_to_tpu
        return "" if for_tpu else "set trainer.export_to_tpu to true"

    def parameters(self) -> dict[str, Any]:
        """Returns `TpuTrainer`'s arguments, without `params`, the steps and the splits.

        Returns:
            Its parameters by name, except for those that have its defaults.
        """
        given = {
            name: getattr(self, name)
            for name, field in TrainSettings.model_fields.items()
            if name == "use_tpu" or getattr(self, name) != field.default
        }
        given["slicing_specs"] = [
            spec.model_dump(mode="json", exclude_defaults=True) for spec in self.slicing_specs
        ]
        own = ("module", "module_file", "trainer_fn", "restore_tf_estimator", "custom_config")
        given.pop("params", None)
        # A trainer_fn's estimator decides this itself, and a model for TPU hosts only has no other graph.
        if self.trainer_fn is None and self.export_to_cpu and not self._on_tpu:
            given.setdefault("export_to_tpu", False)
        return {**given, **{name: getattr(self, name) for name in own}}


class GateSettings(Settings):
    """Requirements for a blessing, by eval metric.

    Attributes:
        at_least: Lower bounds, e.g. `{auc: 0.9}`.
        at_most: Upper bounds, e.g. `{average_loss: 0.4}`.
        max_drop: How far a metric may fall below the last blessed model's, e.g. `{accuracy: 0.01}`. Only for metrics of
            which higher values are better.
        require_alike_answers: Blesses a model only if its serving check has shown that its graphs for CPU and TPU
            hosts give the same answers.
    """

    at_least: dict[str, float] = {}
    at_most: dict[str, float] = {}
    max_drop: dict[str, float] = {}
    require_alike_answers: bool = False

    @pydantic.model_validator(mode="after")
    def _drops_are_positive(self) -> GateSettings:
        for name, drop in self.max_drop.items():
            if drop < 0:
                raise ValueError(
                    f"max_drop of {name!r} is {drop}; give the largest allowed drop as a positive "
                    "number"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _bounds_leave_room(self) -> GateSettings:
        for name in self.at_least.keys() & self.at_most.keys():
            if self.at_least[name] > self.at_most[name]:
                raise ValueError(
                    f"at_least of {name!r} is {self.at_least[name]} and at_most "
                    f"{self.at_most[name]}: no model can satisfy both; correct one of them"
                )
        return self


class ClusterSettings(Settings):
    """Where a compiled pipeline runs.

    Attributes:
        root: Bucket for everything that is written; the config's own `root` if that is in a bucket.
        data: Bucket of the input data; the config's own `data` if that is in a bucket.
        image: Container image of the components, which holds this package and the project, with its tag.
        project: Google Cloud project of Vertex AI; GOOGLE_CLOUD_PROJECT if it is null.
        region: Region of Vertex AI, such as `us-central1`.
    """

    root: Folder | None = None
    data: Folder | None = None
    image: Text | None = None
    project: Text | None = None
    region: Text | None = None


class TuneSettings(Settings):
    """The search of hyperparameters before the training (docs/tuning.md), in pipelines that have one.

    Attributes:
        enabled: Adds TFX's Tuner, whose best hyperparameters win over those of `model`; `tfx-tpu-trainer tune` sets it.
        objective: The eval metric to optimize.
        direction: 'max' if a higher value of it is better, 'min' if a lower one is.
        oracle: The oracle that proposes the trials: 'random', 'bayesian' or 'hyperband'.
        max_trials: The most trials; null is 10, and with 'hyperband' as many as its brackets have.
        train_steps: Steps of a full trial; the trainer's if null.
        evaluations: Evaluations of a full trial. If null, those of the trainer's `eval_every_steps`, or else 4; with
            'hyperband' 9.
        patience: Evaluations in a row without a better value after which a trial ends. If null, the trainer's
            `early_stopping_patience`.
    """

    enabled: bool = False
    objective: Text
    direction: Literal["max", "min"] = "max"
    oracle: Literal["random", "bayesian", "hyperband"] = "bayesian"
    max_trials: Count | None = None
    train_steps: Count | None = None
    evaluations: Count | None = None
    patience: Count | None = None


class PipelineConfig(Settings):
    """The config of every pipeline. A pipeline's own config adds its model's settings.

    Attributes:
        name: The pipeline's name in ML Metadata.
        root: Folder or bucket for everything that is written.
        data: Folder of the input data; if it is null, the pipeline's own real data, which the runner must be able to
            supply.
        metadata_path: SQLite file of ML Metadata; `<root>/metadata.sqlite` if it is null. Only local runners use it.
        serving_dir: Where Pusher puts blessed models; `<root>/serving` if it is null.
        user_code: 'import' names the preprocessing module's import path, and gives TFX a hash of its folder, so an
            edit never matches a stale cache entry; 'file' makes TFX package the folder as a wheel, for Beam workers
            that don't have the code, and install it where Transform runs, which takes some seconds.
        enable_cache: Whether TFX may reuse results of earlier runs.
        beam_args: Beam pipeline arguments, which decide where the Beam components run (docs/beam.md). None, the
            default, uses Beam's DirectRunner in the component's own process; with any, TFX packages a copy of itself
            for each job.
        serving_absent: Raw features that exist only in training data (those from which the label is made); predictions
            for raw rows are made without them.
        baseline: How the last blessed model is found: 'metadata' queries ML Metadata with a Resolver, 'pointer' reads a
            file that the gate writes, for backends without resolvers. `tfx-tpu-trainer compile --kubeflow` sets it to
            'pointer'.
        trainer: Settings of `TpuTrainer`.
        cluster: Where the compiled pipeline runs. Local runs ignore it.
        vertex: The CustomJob of Vertex AI that trains on `trainer.tpu`, instead of the trainer's own pod.
            `tfx-tpu-trainer compile --vertex` fills it in.
        pods: Settings of a cluster's pods, such as secrets and tolerations (docs/orchestration.md). Local runs ignore
            them.
        gate: Requirements for a model to be pushed.
    """

    name: PipelineName
    root: Folder
    data: Folder | None = None
    metadata_path: Folder | None = None
    serving_dir: Folder | None = None
    user_code: Literal["file", "import"] = "import"
    enable_cache: bool = True
    beam_args: Strings = ()
    serving_absent: Strings = ()
    baseline: Literal["metadata", "pointer"] = "metadata"
    trainer: TrainerSettings
    cluster: ClusterSettings = ClusterSettings()
    vertex: VertexJob | None = None
    pods: Pods = Pods()
    gate: GateSettings = GateSettings()

    @pydantic.model_validator(mode="after")
    def _beam_arguments_are_whole(self) -> PipelineConfig:
        check_beam_arguments(self.beam_args, code_is_imported=self.user_code == "import")
        return self

    @pydantic.model_validator(mode="after")
    def _answers_can_be_alike(self) -> PipelineConfig:
        if self.gate.require_alike_answers and (needed := self.trainer.needed_to_compare_answers()):
            raise ValueError(f"gate.require_alike_answers would bless no model: {needed}")
        return self

    @property
    def pipeline_root(self) -> str:
        """The folder for TFX's artifacts."""
        return f"{self.root}/artifacts"

    @property
    def checkpoint_root(self) -> str:
        """The folder for checkpoints until their training has ended, where a retry finds them."""
        return self.trainer.checkpoint_root or f"{self.root}/checkpoints/{self.name}"

    @property
    def blessed_pointer(self) -> str | None:
        """The file that names the last blessed model; `None` if ML Metadata is used."""
        return f"{self.root}/{self.name}/blessed.json" if self.baseline == "pointer" else None

    @property
    def metadata_file(self) -> str:
        """ML Metadata's SQLite file."""
        return self.metadata_path or f"{self.root}/metadata.sqlite"

    @property
    def push_folder(self) -> str:
        """The folder for blessed models, with one subfolder per push."""
        return self.serving_dir or f"{self.root}/serving"


class ProjectConfig(PipelineConfig):
    """The config of a project without its own config class.

    Attributes:
        model: Values in the model_fn's `params`: any JSON values, by name.
    """

    model: dict[str, Any] = {}

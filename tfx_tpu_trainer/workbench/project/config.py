"""Typed, validated pipeline configs: a YAML file, values set on the command line, one frozen object.

Reading a config imports neither TensorFlow nor TFX, so a wrong key or type is reported in a
fraction of a second.
"""

from __future__ import annotations

import difflib
import re
import reprlib
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import yaml
from pydantic import ConfigDict

from tfx_tpu_trainer.components import TrainSettings, broken_rule, plain_type
from tfx_tpu_trainer.components.clusters import Pods, VertexJob
from tfx_tpu_trainer.workbench.project.beam_options import check_beam_arguments
from tfx_tpu_trainer.workbench.project.setting_types import (
    Count,
    Folder,
    ImportPath,
    PipelineName,
    Seed,
    Strings,
    Text,
)

ConfigT = TypeVar("ConfigT", bound="PipelineConfig")

# A message shows no more of a value: a file may hold anything.
_MAX_SHOWN = 200
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel = 4
_SHOWN.maxdict = _SHOWN.maxlist = _SHOWN.maxtuple = 20
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = _MAX_SHOWN


# More valid keys than these are not listed beside a near one.
_MOST_LISTED = 20

# A pipeline's own settings may have groups of groups.
_MAX_DEPTH = 8


class ConfigError(ValueError):
    """A config that cannot be used; the message names each bad value, where it stands and the fix."""


class Settings(pydantic.BaseModel):
    """Base of every group of settings: frozen, no unknown keys, no silent conversion of types, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SliceSettings(Settings):
    """Slices of the eval split, as of tfma.SlicingSpec.

    Attributes:
        feature_keys: Features whose values each make a slice.
        feature_values: Features that have one value in the slice, with that value as a text.
    """

    feature_keys: Strings = ()
    feature_values: dict[str, str] = {}


_FLAGS = tuple(
    name
    for name, field in TrainSettings.model_fields.items()
    if plain_type(field.annotation) is bool and name != "use_tpu"
)


class TrainerSettings(TrainSettings):
    """What `TpuTrainer` is told, beside the model's own settings: all of its parameters that are no artifacts.

    docs/component.md lists them. These differ from the component's:

    Attributes:
        label_key: Must be there, and may be null.
        module: Import path of the module with `model_fn`. Exactly one of `module`, `module_file` and `trainer_fn` is
            given.
        module_file: Path of a `.py` file with `model_fn`; TFX packages its whole folder as a wheel.
        trainer_fn: Import path of a function `trainer_fn` (docs/legacy.md).
        restore_tf_estimator: Whether a module with a trainer_fn finds `tf.estimator`.
        custom_config: Values for a trainer_fn's `custom_config`.
        train_steps: Training steps: `num_steps` of `train_args`.
        train_splits: Splits that are trained on; `train` where there is none.
        eval_steps: Evaluation batches; all of the eval split where it is null.
        eval_splits: Splits that are evaluated; `eval` where there is none.
        tpu: The TPU slice to train on, as `v5e:2x4` or as `{slice_name: v5e:2x4, spot: true}`. The
            runners for clusters ask for it; where there is none, `master: emulated` emulates it.
        use_tpu: Whether to train on TPU cores; `master` says where they are. Where it is null,
            whether there is a `tpu`.
        tf_random_seed: Seed of the variables' initial values and of every unseeded op in the model.
        slicing_specs: The slices that are measured too, as `[{feature_keys: [payment_type]}]`.
        params: Values for the model_fn's `params`; they win over the pipeline's, such as those of `model`.
        checkpoint_root: Where checkpoints are until their training has ended; `<root>/checkpoints/<name>` where it is
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
        # TFX stores them as 0 and 1; nobody writes them so.
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{_shown(value)} is not a boolean; give true or false")
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
        use_tpu = self.tpu is not None if self.use_tpu is None else self.use_tpu
        # Also of a trainer_fn, for which few of them have a meaning: what is not set breaks none.
        resolved = typing.cast(TrainSettings, self.model_copy(update={"use_tpu": use_tpu}))
        if problem := broken_rule(resolved):
            raise ValueError(problem)
        return self

    def parameters(self) -> dict[str, Any]:
        """The settings as `TpuTrainer` takes them, without `params`, the steps and the splits.

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
        return {**given, **{name: getattr(self, name) for name in own}}


class GateSettings(Settings):
    """What a model must reach to be blessed, by the name of its eval metric.

    Attributes:
        at_least: Lower bounds, e.g. `{auc: 0.9}`.
        at_most: Upper bounds, e.g. `{average_loss: 0.4}`.
        max_drop: How far a metric may fall below the last blessed model's, e.g. `{accuracy: 0.01}`.
            Metrics where higher is better only.
    """

    at_least: dict[str, float] = {}
    at_most: dict[str, float] = {}
    max_drop: dict[str, float] = {}

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


class PipelineConfig(Settings):
    """What every pipeline needs. A pipeline's own config adds its model's settings.

    Attributes:
        name: The pipeline's name in ML Metadata.
        root: Folder or bucket under which everything is written.
        data: Folder of the input data; the pipeline's own real data where it is null and the runner
            can supply it.
        metadata_path: SQLite file of ML Metadata; `<root>/metadata.sqlite` where it is null. Only
            local runners use it.
        serving_dir: Where Pusher puts blessed models; `<root>/serving` where it is null.
        user_code: 'import' names the preprocessing module's import path, and gives TFX a hash of its folder, so
            that an edit never meets a stale cache; 'file' has TFX package the folder as a wheel, for Beam workers
            that don't have the code, and install it where Transform runs, which takes some seconds.
        enable_cache: Whether TFX may reuse results of earlier runs.
        beam_args: Beam pipeline arguments: where the Beam components run (docs/beam.md). None, the default, is
            Beam's DirectRunner in the component's own process; with any, TFX packs a copy of itself for each job.
        serving_absent: Raw features that only exist in training data (what the label is made from);
            a prediction for a raw row is made without them.
        baseline: How the last blessed model is found: 'metadata' asks ML Metadata with a Resolver, 'pointer'
            reads a file that the gate writes, for backends without resolvers.
            `kubeflow/kubeflow_runner.py` sets it to 'pointer'.
        trainer: Settings of `TpuTrainer`.
        vertex: The CustomJob of Vertex AI that trains on `trainer.tpu`, instead of the trainer's own pod.
            `kubeflow/vertex_runner.py` fills it in.
        pods: What the pods of a cluster need, such as secrets and tolerations (docs/orchestration.md). Local runs
            have no use for it.
        gate: What a model must reach to be pushed.
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
    vertex: VertexJob | None = None
    pods: Pods = Pods()
    gate: GateSettings = GateSettings()

    @pydantic.model_validator(mode="after")
    def _beam_arguments_are_whole(self) -> PipelineConfig:
        check_beam_arguments(self.beam_args, code_is_imported=self.user_code == "import")
        return self

    @property
    def pipeline_root(self) -> str:
        """Where TFX puts the artifacts."""
        return f"{self.root}/artifacts"

    @property
    def checkpoint_root(self) -> str:
        """Where checkpoints are until their training has ended, so that a retry finds them."""
        return self.trainer.checkpoint_root or f"{self.root}/checkpoints/{self.name}"

    @property
    def blessed_pointer(self) -> str | None:
        """The file that names the last blessed model; `None` where ML Metadata is asked."""
        return f"{self.root}/{self.name}/blessed.json" if self.baseline == "pointer" else None

    @property
    def metadata_file(self) -> str:
        """The SQLite file of ML Metadata."""
        return self.metadata_path or f"{self.root}/metadata.sqlite"

    @property
    def push_folder(self) -> str:
        """Where Pusher puts blessed models, one folder per push."""
        return self.serving_dir or f"{self.root}/serving"


class ProjectConfig(PipelineConfig):
    """The config of a project without a config class of its own.

    Attributes:
        model: What the model_fn finds in its `params`: any JSON values, by name.
    """

    model: dict[str, Any] = {}


def load_config(
    config_class: type[ConfigT],
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Reads a YAML config, applies the overrides and checks the result.

    Args:
        config_class: The pipeline's config class.
        path: The YAML file.
        overrides: `key=value` strings as given on the command line; dots reach into groups
            (`trainer.train_steps=200`), the value is read as YAML.
        values: Top-level values that win over the file and lose against `overrides`, such as the
            root.

    Returns:
        The frozen config.

    Raises:
        ConfigError: If the file cannot be read, a key is unknown or has a wrong type, or an
        override is malformed.
    """
    path = Path(path)
    tree = _read_yaml(path)
    tree.update(values or {})
    origin: dict[tuple[str, ...], str] = {(key,): "the command line" for key in values or {}}
    for override in overrides:
        keys = _apply_override(tree, override)
        origin[keys] = f"--set {_cut(override)}"
    try:
        return config_class.model_validate(tree)
    except pydantic.ValidationError as error:
        items = error.errors()
        # A list whose only item is refused is not too short besides.
        refused = {item["loc"][:-1] for item in items}
        lines = [
            _explain(item, config_class, str(path), origin)
            for item in items
            if item["type"] != "too_short" or item["loc"] not in refused
        ]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


# `<<`, which takes another mapping's keys in.
_MERGE = "tag:yaml.org,2002:merge"
# YAML 1.1 reads 010 as octal and 1:30 in base 60: eight steps, or ninety, where nobody meant them.
_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+)")
# Brackets within brackets of a setting's value: more than any value needs.
_MOST_BRACKETS = 100


class _Loader(yaml.SafeLoader):
    """YAML that reads numbers as they look, 1e-3 among them, and refuses a key given twice."""

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        # PyYAML takes seconds to read a thousand brackets, and only then runs out of stack.
        if self.flow_level >= _MOST_BRACKETS:
            raise RecursionError
        super().fetch_flow_collection_start(token_class)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {_shown(key)} is not a name", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = super().construct_yaml_int(node)
        if _OTHER_BASE.fullmatch(node.value):
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{node.value} is YAML for the number {number}; write {number}, or '{node.value}' for a text",
                node.start_mark,
            )
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"can't read the config {str(path)!r}: {error.strerror or error}; give another with "
            "--config"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid YAML: it is not UTF-8 ({error}); save it as UTF-8"
        ) from None
    tree = _parse(text, f"{path} is not valid YAML")
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path} must contain a mapping of settings, such as 'name: taxi'; found "
            f"{type(tree).__name__}"
        )
    return tree


def _parse(text: str, what: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: 2020-99-01, and numbers of thousands of digits, for which Python's hint is no help.
        reason = " ".join(str(error).partition("; use sys.")[0].split())
    except RecursionError:
        reason = "it is nested too deeply"
    raise ConfigError(f"{what}: {_cut(reason)}")


def _apply_override(tree: dict[str, Any], override: str) -> tuple[str, ...]:
    """Sets one `a.b=value` in the tree and returns its path."""
    name, separator, text = override.partition("=")
    keys = tuple(part.strip() for part in name.split("."))
    given = f"--set {_shown(override)}"
    if not separator or not all(keys):
        raise ConfigError(f"{given} is not of the form key=value, such as trainer.train_steps=200")
    if len(keys) > _MAX_DEPTH:
        raise ConfigError(
            f"{given} is {len(keys)} groups deep; no setting is deeper than {_MAX_DEPTH}, as in "
            "gate.at_least.auc=0.9"
        )
    value = _parse(text, f"{given}: the value is not valid YAML")
    group = tree
    for depth, key in enumerate(keys[:-1]):
        inner = group.setdefault(key, {})
        if not isinstance(inner, dict):
            where = ".".join(keys[: depth + 1])
            raise ConfigError(
                f"{given}: {where!r} is a value ({_shown(inner)}), not a group of settings; set "
                "that value itself, or name a setting of a group"
            )
        group = inner
    group[keys[-1]] = value
    return keys


def _explain(
    item: Mapping[str, Any],
    config_class: type[Settings],
    path: str,
    origin: Mapping[tuple[str, ...], str],
) -> str:
    """One line for one of pydantic's errors: where, what, which fix."""
    location = tuple(str(part) for part in item["loc"])
    if location[-1:] == ("[key]",):
        # Of a key that is wrong, the mapping is the place.
        location = location[:-2]
    where = next(
        (text for keys, text in origin.items() if keys[: len(location)] == location[: len(keys)]),
        path,
    )
    key = ".".join(location)
    if item["type"] == "extra_forbidden":
        group = _group_at(config_class, location[:-1])
        valid = sorted(group.model_fields) if group else []
        nearest = difflib.get_close_matches(location[-1], valid, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}? Valid" if nearest else "valid"
        place = f" in {'.'.join(location[:-1])!r}" if location[:-1] else ""
        said = f"{where}: unknown key {location[-1]!r}{place}; {hint}"
        # Where one is near, a long list hides it.
        return (
            said.removesuffix(" Valid")
            if nearest and len(valid) > _MOST_LISTED
            else f"{said} keys: {', '.join(valid)}"
        )
    if item["type"] == "missing":
        return f"{where}: the key {key!r} is missing; add it"
    if item["type"] == "value_error":
        reason = str(item["msg"]).removeprefix("Value error, ")
        return f"{where}: {key + ': ' if key else ''}{reason}"
    reason = str(item["msg"])
    reason = reason[:1].lower() + reason[1:]
    return f"{where}: {key!r} is {_shown(item['input'])} ({type(item['input']).__name__}): {reason}"


def _shown(value: Any) -> str:
    return _cut(_SHOWN.repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _group_at(
    config_class: type[Settings], location: Sequence[str]
) -> type[pydantic.BaseModel] | None:
    """The class of settings that stands at a path of keys, if there is one."""
    group: type[pydantic.BaseModel] = config_class
    for key in location:
        if key.isdecimal():
            # Of a list, each of whose items is such a group.
            continue
        field = group.model_fields.get(key)
        found = _settings_in(field.annotation) if field else None
        if found is None:
            return None
        group = found
    return group


def _settings_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The class of settings of a field's annotation: itself, an arm of `Settings | None`, or a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple):
        return next(filter(None, map(_settings_in, typing.get_args(annotation))), None)
    return None

"""Defines a search: its settings, and the trainings that it makes of a module."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import itertools
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import pydantic
import tensorflow as tf
import tensorflow_transform as tft
from tfx import v1 as tfx

from tfx_tpu_trainer._support.messages import failures_are_named
from tfx_tpu_trainer.components.inputs import RowCache, TransformedInput, vocabulary_sizes
from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.estimators import (
    draws_elsewhere,
    run_config,
    seeded,
    strategies,
)
from tfx_tpu_trainer.components.trainer.hosts import ALONE
from tfx_tpu_trainer.components.trainer.resume import TrainingIdentity
from tfx_tpu_trainer.components.trainer.rows import Rows, check_rows
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.train_job import CUSTOM_CONFIG_SETTINGS
from tfx_tpu_trainer.components.trainer.values import (
    Flag,
    Folder,
    Name,
    Positive,
    check_names,
    first_problem,
)
from tfx_tpu_trainer.components.tuning._search_space import ParamReads, SearchSpace
from tfx_tpu_trainer.components.user_module._module import (
    UserModule,
    check_module,
    with_keras_model,
)
from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator.extending import OpenEvaluation, as_input_tensors, call_input_fn

CUSTOM_CONFIG_TUNING = "tuning"
"""Key of the stock Tuner's custom_config with the settings of the search."""

DEFAULT_TRIALS = 10
"""Trials of a random or Bayesian search."""

# NumPy's random states accept no more; keras-tuner takes 0 for a random seed.
_LARGEST_SEED = 2**32 - 1


class TuneSettings(pydantic.BaseModel):
    """The settings of a search, by the names that `make_tuner_fn` and `custom_config["tuning"]` of a Tuner take.

    Examples:
        >>> from tfx_tpu_trainer.components.tuning import TuneSettings
        >>> settings = TuneSettings(objective="loss", direction="min", oracle="hyperband", seed=7)
        >>> settings.oracle, settings.factor, settings.max_trials
        ('hyperband', 3, None)

    Attributes:
        objective: The metric to optimize: one that metric_fn returns, or `loss`.
        direction: "max" if a higher value of it is better, "min" if a lower one is. Defaults to "max".
        oracle: The keras-tuner oracle that proposes the trials: "random", "bayesian" or "hyperband". Defaults to
            "bayesian".
        max_trials: The most trials. Defaults to `None`: 10, and with "hyperband" as many as its brackets have.
        num_initial_points: Random trials before "bayesian" learns from them. Defaults to `None`: a third of
            `max_trials`, and two at least.
        factor: "hyperband" continues one of this many trials. Defaults to 3.
        hyperband_iterations: How often "hyperband" runs all of its brackets. Defaults to 1.
        evaluations: Evaluations of a full trial, at equal intervals; the epochs of "hyperband". Defaults to `None`: 4,
            and 9 with "hyperband".
        patience: Evaluations in a row without a better value after which a trial ends. Defaults to `None`: none.
        stop_poor: Whether a trial ends early if its best value is worse than the median of the other trials' averages
            up to that step. Defaults to `None`: yes, except with "hyperband", which has its own rule.
        poor_after_trials: Number of ended trials from which on a trial can count as poor. Defaults to 3.
        seed: Seed of the oracle, 1 or more. Defaults to 1: the same search draws the same trials.
        directory: Folder of the search, in which another attempt finds it, and which all processes of the search share.
            Defaults to `None`: the Tuner's working folder, which TFX removes.
        keep_checkpoints: Whether to keep checkpoints of trials that will not be continued. Defaults to `False`.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    objective: Name
    direction: Literal["max", "min"] = "max"
    oracle: Literal["random", "bayesian", "hyperband"] = "bayesian"
    max_trials: Positive | None = None
    num_initial_points: Positive | None = None
    factor: Positive = 3
    hyperband_iterations: Positive = 1
    evaluations: Positive | None = None
    patience: Positive | None = None
    stop_poor: Flag | None = None
    poor_after_trials: Positive = 3
    seed: Annotated[int, pydantic.Field(gt=0, le=_LARGEST_SEED)] = 1
    directory: Folder | None = None
    keep_checkpoints: Flag = False

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str) -> TuneSettings:
        """Checks values and makes settings from them.

        Args:
            values: Values by name. A name whose value is `None` takes its default.
            source: Where the values come from; error messages begin with it.

        Returns:
            The settings.

        Raises:
            ValueError: If a name is unknown or missing, or a value is invalid; names it and the fix.
        """
        check_names(values, cls.model_fields, f"{source}: ")
        known = {name: value for name, value in values.items() if value is not None}
        if "objective" not in known:
            raise ValueError(
                f"{source}: objective is missing; name the metric to optimize, such as 'auc'"
            )
        try:
            settings = cls.model_validate(known)
        except pydantic.ValidationError as error:
            raise ValueError(f"{source}: {first_problem(error)}") from None
        if problem := _broken_rule(settings):
            raise ValueError(f"{source}: {problem}")
        return settings

    @property
    def trial_limit(self) -> int | None:
        """The most trials; `None` lets the oracle decide."""
        if self.max_trials is None and self.oracle != "hyperband":
            return DEFAULT_TRIALS
        return self.max_trials

    @property
    def evaluations_of_a_trial(self) -> int:
        """The number of evaluations in a full trial."""
        return self.evaluations or (9 if self.oracle == "hyperband" else 4)

    @property
    def stops_poor_trials(self) -> bool:
        """Whether running trials are compared with others."""
        return self.oracle != "hyperband" if self.stop_poor is None else self.stop_poor


def _broken_rule(settings: TuneSettings) -> str | None:
    if settings.oracle != "hyperband":
        return None
    if settings.factor < 2:
        return (
            f"factor={settings.factor} is not valid; give 2 or more: one trial in this many is "
            "trained further"
        )
    if settings.evaluations_of_a_trial < settings.factor:
        return (
            f"evaluations={settings.evaluations_of_a_trial} with oracle='hyperband' leaves no "
            f"trial to train further; give at least factor={settings.factor}"
        )
    return None


# Each takes as long as building a training's and an evaluation's graphs.
_MOST_VARIATIONS = 20

MakeStrategy = Callable[[], tf.distribute.Strategy]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneJob:
    """A search's model, data and settings."""

    settings: TrainSettings  # the settings of a trial's training
    tune: TuneSettings  # the settings of the search
    space: SearchSpace
    module: UserModule  # The user's functions; `reads` records the params that they read.
    reads: ParamReads
    fn_args: tfx.components.FnArgs  # The data, and the steps of a full trial.
    strategy: tf.distribute.Strategy | None
    identity: TrainingIdentity

    @classmethod
    def of(
        cls,
        fn_args: tfx.components.FnArgs,
        *,
        model_fn: Callable[..., Any] | None,
        build_model: Callable[..., Any] | None,
        search_space: Any,
        input_fn: Callable[..., Any] | None,
        params: Any,
        strategy: MakeStrategy | None,
        tune: Mapping[str, Any],
    ) -> TuneJob:
        """Combines a user's module and the pipeline's arguments."""
        custom = dict(fn_args.custom_config or {})
        source = f"custom_config[{CUSTOM_CONFIG_SETTINGS!r}]"
        settings = TrainSettings.parse(custom.get(CUSTOM_CONFIG_SETTINGS) or {}, source=source)
        of_pipeline = custom.get(CUSTOM_CONFIG_TUNING) or {}
        if isinstance(of_pipeline, Mapping):
            of_pipeline = {**tune, **of_pipeline}
        tuning = TuneSettings.parse(of_pipeline, source=f"custom_config[{CUSTOM_CONFIG_TUNING!r}]")
        if not fn_args.train_steps or fn_args.train_steps < tuning.evaluations_of_a_trial:
            raise ValueError(
                f"train_args.num_steps={fn_args.train_steps or 0}: a trial with "
                f"evaluations={tuning.evaluations_of_a_trial} needs at least as many steps; give "
                "the Tuner train_args=tfx.proto.TrainArgs(num_steps=...)"
            )
        space = SearchSpace.of(search_space)
        reads = ParamReads()
        model = model_fn or build_model
        given = types.ModuleType(getattr(model, "__module__", None) or "tuning")
        given.__dict__.update(
            model_fn=model_fn, build_model=build_model, input_fn=input_fn, params=params
        )
        module = check_module(given)
        watched = dataclasses.replace(
            module,
            model_fn=reads.watched(module.model_fn),
            build_model=module.build_model and reads.watched(module.build_model),
            input_fn=module.input_fn and reads.watched(module.input_fn),
        )
        functions = [f for f in (model, input_fn, space.declare) if f is not None]
        return cls(
            settings=settings,
            tune=tuning,
            space=space,
            module=watched,
            reads=reads,
            fn_args=fn_args,
            strategy=strategy() if strategy is not None else None,
            identity=_identity(fn_args, settings, tuning, space, functions),
        )

    def check(self) -> None:
        """Checks the data as far as possible without training."""
        fn_args, settings = self.fn_args, self.settings
        if not fn_args.transform_graph_path:
            raise ValueError(
                "transform_graph is missing; give the Tuner transform_graph="
                "transform.outputs['transform_graph'] of a Transform component"
            )
        preconditions.check_transform_graph(fn_args.transform_graph_path)
        preconditions.check_label(
            fn_args.transform_graph_path,
            settings.label_key,
            wanted=self.has_default_input and self.module.takes_labels,
        )
        preconditions.check_base_model(fn_args.base_model)
        if self.has_default_input:
            batches = (settings.train_batch_size, settings.rows_per_eval_batch)
            for rows, patterns, size in zip(self.rows, self._patterns, batches, strict=True):
                counted = self._transformed(patterns).eval_fn()
                check_rows(rows, counted, batch_size=size, training=patterns == self._patterns[0])

    def check_params_are_read(self, folder: str) -> None:
        """Builds the graphs of the default trial and, if params are unread, of some others."""
        names = set(self.space.default_params)
        module = sys.modules.get(self.module.name)
        with failures_are_named(module) if module else contextlib.nullcontext():
            self._build_graphs(self.space.default_params, folder)
        for params in itertools.islice(self.space.variations(), _MOST_VARIATIONS):
            if not self.reads.unread(names | set(params)):
                continue
            try:
                self._build_graphs(params, folder)
            except Exception:
                # A trial with these values will report it.
                continue
            names |= set(params)
        # On cores a model may read more params than here; the first trial checks them.
        if not self.settings.use_tpu:
            self.reads.check(names)

    def _build_graphs(self, params: Mapping[str, Any], folder: str) -> None:
        """Calls model_fn for a training and an evaluation on the host, without running anything."""
        estimator = self.estimator(params, folder, on_host=True)
        config = estimator.config
        given = {**estimator.params, "batch_size": self.settings.train_batch_size}
        with tf.Graph().as_default():
            tf.compat.v1.train.create_global_step()
            returned = call_input_fn(
                self.train_input_fn(), mode=ModeKeys.TRAIN, params=given, config=config
            )
            inputs = as_input_tensors(returned)
            estimator.model_fn(inputs.features, inputs.labels, ModeKeys.TRAIN, config)
        OpenEvaluation(estimator, self.eval_input_fn, steps=self.fn_args.eval_steps).trace()

    @property
    def has_default_input(self) -> bool:
        """Whether Transform's examples are read without the module's input_fn."""
        return self.module.input_fn is None

    @functools.cached_property
    def rows(self) -> tuple[Rows, ...]:
        """The rows to train on and to evaluate, read without the module's input_fn."""
        if not self.has_default_input:
            return ()
        spec = tft.TFTransformOutput(self.fn_args.transform_graph_path).transformed_feature_spec()
        names = ("rows to train on", "rows to evaluate")
        return tuple(
            Rows(split=name, patterns=patterns, spec=spec)
            for name, patterns in zip(names, self._patterns, strict=True)
        )

    def row_cache(self, folder: str) -> RowCache | None:
        """Returns the cache of a trial's parsed rows."""
        settings = self.settings
        if not self.has_default_input or settings.cache_input is False or draws_elsewhere(settings):
            return None
        rows = (self.fn_args.train_steps or 0) * settings.train_batch_size
        return RowCache(rows_to_draw=None if settings.cache_input else rows, checkpoints=folder)

    def train_input_fn(self, cache: RowCache | None = None) -> Callable[..., Any]:
        """Returns the input function for training."""
        made = self.module.input_fn_for("train", self.fn_args)
        if made is not None:
            return made
        return dataclasses.replace(self._transformed(self._patterns[0]), cache=cache).train_fn()

    @property
    def eval_input_fn(self) -> Callable[..., Any]:
        """Returns the input function for evaluation."""
        made = self.module.input_fn_for("eval", self.fn_args)
        return made or self._transformed(self._patterns[1]).eval_fn()

    @property
    def input_is_saved(self) -> bool:
        """Whether a stopped trial continues with the rows that come next."""
        if self.strategy is not None or strategies(self.settings):
            return False
        saves = self.settings.save_input_position
        return self.has_default_input if saves is None else saves

    def estimator(
        self, params: Mapping[str, Any], folder: str, *, step: int = 0, on_host: bool = False
    ) -> tpu.TPUEstimator:
        """Makes an estimator for a trial."""
        settings = self.settings if self.input_is_saved else seeded(self.settings, step)
        if on_host:
            of_cores = ("tpu", "master", "num_shards", "num_cores_per_replica")
            settings = settings.model_copy(update={"use_tpu": False, **dict.fromkeys(of_cores)})
        # Vertex AI describes the search's processes as a cluster, but each trains its own trials.
        config = run_config(settings, model_dir=folder, tf_config=ALONE)
        config = config.replace(save_input_position=self.input_is_saved and not on_host)
        if self.strategy is not None and not on_host:
            config = config.replace(train_distribute=self.strategy, eval_distribute=self.strategy)
        graph_path = self.fn_args.transform_graph_path
        known = {
            "vocabulary_sizes": vocabulary_sizes(graph_path),
            **self.module.params_for(self.fn_args),
            **settings.params,
            **params,
        }
        module = with_keras_model(
            self.module,
            known,
            features=tft.TFTransformOutput(graph_path).transformed_feature_spec()
            if self.has_default_input
            else None,
            label_key=settings.label_key,
            config=config,
            warm_start_from=self.fn_args.base_model,
        )
        return tpu.TPUEstimator(
            model_fn=module.model_fn,
            config=config,
            params=known,
            use_tpu=settings.use_tpu,
            eval_on_tpu=settings.use_tpu,
            train_batch_size=settings.train_batch_size,
            eval_batch_size=settings.rows_per_eval_batch,
            warm_start_from=module.warm_start_from or self.fn_args.base_model,
        )

    def steps_of(self, evaluations: int) -> int:
        """Returns the step of a trial's n-th evaluation."""
        steps, all_of_them = self.fn_args.train_steps or 0, self.tune.evaluations_of_a_trial
        # Rounded up. Example: 3 evaluations of 10 steps come after steps 4, 7 and 10.
        return -(-steps * min(evaluations, all_of_them) // all_of_them)

    @property
    def _patterns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(self.fn_args.train_files), tuple(self.fn_args.eval_files)

    def _transformed(self, patterns: tuple[str, ...]) -> TransformedInput:
        return TransformedInput(
            transform_graph_path=self.fn_args.transform_graph_path,
            file_patterns=patterns,
            dataset_factory=self.fn_args.data_accessor.tf_dataset_factory,
            label_key=self.settings.label_key,
            shuffle_seed=self.settings.tf_random_seed,
        )


def _identity(
    fn_args: tfx.components.FnArgs,
    settings: TrainSettings,
    tune: TuneSettings,
    space: SearchSpace,
    functions: Iterable[Callable[..., Any]],
) -> TrainingIdentity:
    """Describes a search: an attempt with the same description continues its trials."""
    stored = settings.to_exec_properties()
    in_checkpoint = {k: v for k, v in stored.items() if settings.about(k).in_checkpoint}
    return TrainingIdentity(
        {
            "space": space.hyperparameters.get_config(),
            "search": tune.model_dump(exclude={"directory", "keep_checkpoints"}),
            "settings": in_checkpoint,
            "train_steps": fn_args.train_steps,
            "eval_steps": fn_args.eval_steps,
            "files": _files([*fn_args.train_files, *fn_args.eval_files]),
            "transform_graph": fn_args.transform_graph_path,
            "base_model": fn_args.base_model,
            "code": _code(functions),
        }
    )


def _files(patterns: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(tf.io.gfile.glob(pattern)):
            found = tf.io.gfile.stat(path)
            digest.update(f"{path}\0{found.length}\0{found.mtime_nsec}\0".encode())
    return digest.hexdigest()[:16]


def _code(functions: Iterable[Callable[..., Any]]) -> str:
    """Hashes the files of a user's functions and, in a package, their neighbours."""
    files: set[pathlib.Path] = set()
    for function in functions:
        while isinstance(function, functools.partial):
            function = function.func
        function = inspect.unwrap(function)
        try:
            path = pathlib.Path(inspect.getfile(function))
        except TypeError:
            path = pathlib.Path(inspect.getfile(type(function)))
        in_package = "." in (getattr(function, "__module__", None) or "")
        files.update(path.parent.glob("*.py") if in_package else [path])
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]

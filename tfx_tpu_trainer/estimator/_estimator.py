"""Trains, evaluates, predicts and exports a model_fn."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.progress import EVALUATE, PREDICT, TRACE, TRAIN, followed, unfollowed
from tfx_tpu_trainer.estimator import _spec_checks
from tfx_tpu_trainer.estimator._callables import argument_names, as_params, check_model_fn
from tfx_tpu_trainer.estimator._calls import (
    EstimatorCalls,
    call_graph,
    check_listeners,
    check_members_are_not_overridden,
    complete_config,
    has_terminal,
)
from tfx_tpu_trainer.estimator._engine import prediction
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.evaluating import evaluation
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import (
    EvalResult,
    SayRowsRead,
    write_evaluation_events,
)
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import with_values
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import Reporting
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import whole_steps
from tfx_tpu_trainer.estimator._engine.prediction import single_rows
from tfx_tpu_trainer.estimator._engine.reporting.summaries import events_of
from tfx_tpu_trainer.estimator._engine.training import training
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._task_environment import TaskType
from tfx_tpu_trainer.estimator._warm_start import as_warm_start_settings, warm_start
from tfx_tpu_trainer.estimator.export._meta_graph import MetaGraph
from tfx_tpu_trainer.estimator.export._saved_model import (
    build_meta_graphs,
    check_receiver_fns,
    export_meta_graphs,
    export_saved_model,
    find_checkpoint,
)

if TYPE_CHECKING:
    from typing_extensions import Self

v1 = tf.compat.v1
_logger = tf.get_logger()

_SESSION_HOOKS = "Hooks must be a SessionRunHook"


def _as_text(path: Any) -> Any:
    """A path as TensorFlow's savers take it; what is none stays, and is refused where it is opened."""
    return os.fsdecode(path) if isinstance(path, (bytes, os.PathLike)) else path


class Estimator:
    """Trains, evaluates, predicts and exports a model_fn; mirrors `tf.estimator.Estimator`.

    Every call makes a new graph, calls input_fn and model_fn once in it and restores the
    latest checkpoint of `model_dir`.

    Examples:
        A weight that learns to double:

        >>> from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec
        >>> import tensorflow as tf
        >>> def input_fn():
        ...     return tf.data.Dataset.from_tensors(([[1.0], [2.0]], [[2.0], [4.0]])).repeat()
        >>> def model_fn(features, labels, mode, params):
        ...     weight = tf.compat.v1.get_variable("weight", [1, 1])
        ...     loss = tf.reduce_mean(tf.square(features @ weight - labels))
        ...     optimizer = tf.compat.v1.train.GradientDescentOptimizer(params["rate"])
        ...     train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
        ...     return EstimatorSpec(mode, loss=loss, train_op=train_op)
        >>> estimator = Estimator(model_fn, model_dir="runs/double", params={"rate": 0.1})
        >>> estimator = estimator.train(input_fn, max_steps=100)
        >>> print(estimator.get_variable_value("weight").round(3))
        [[2.]]
        >>> sorted(estimator.evaluate(input_fn, steps=5))
        ['global_step', 'loss']
    """

    # A TPUEstimator gives its model_fn a batch size in params whether or not there are others.
    _warns_of_missing_params = True

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        """Checks the arguments and keeps copies of them.

        Args:
            model_fn: Takes `features` and, if it likes, `labels`, `mode`, `params` and
                `config`; returns an `EstimatorSpec`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else
                to a temporary folder.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            params: What model_fn and input_fn get as `params`. Defaults to `None`, an empty
                dict.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.

        Raises:
            ValueError: If an argument does not hold.
            TypeError: If model_fn is not callable, or params are no dict.
        """
        # By the class, with the instance as the argument, as in the original: AdaNet replaces the
        # method by a static one.
        type(self)._assert_members_are_not_overridden(self)
        self._config, self._model_dir = complete_config(config, model_dir)
        self._has_temporary_model_dir = not (model_dir or (config and config.model_dir))
        if model_fn is None:
            raise ValueError("model_fn must be provided to Estimator.")
        check_model_fn(model_fn, params)
        if (
            params is None
            and self._warns_of_missing_params
            and "params" in argument_names(model_fn)
        ):
            _logger.warning(
                "Estimator's model_fn (%s) includes params argument, but params are not passed to "
                "Estimator.",
                model_fn,
            )
        self._params = copy.deepcopy(as_params(params))
        self._warm_start_settings = as_warm_start_settings(warm_start_from)
        self._model_fn = model_fn

    # Made anew for each use: programs set the private attributes of the original between calls, for example
    # `estimator._params["rate"] = 0.1`, and Neural Structured Learning wraps `_model_fn`.
    @property
    def _calls(self) -> EstimatorCalls:
        return EstimatorCalls(
            self._model_fn, config=self._config_of_runs, params=self._params or {}
        )

    @property
    def _config_of_runs(self) -> RunConfig:
        if self._config.model_dir == self._model_dir:
            return self._config
        return self._config.replace(model_dir=self._model_dir)

    # Names of the original's that AdaNet replaces and calls.
    def _assert_members_are_not_overridden(self) -> None:
        check_members_are_not_overridden(type(self), Estimator)

    def _create_and_assert_global_step(self, graph: tf.Graph) -> tf.Variable:
        return v1.train.create_global_step(graph)

    @property
    def model_dir(self) -> str:
        """Folder of checkpoints and events."""
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the configuration."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the params."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model_fn with `params` bound: a function of features, labels, mode, config."""

        def public_model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> Any:
            return self._calls.call_model_fn(features, labels, mode, config=config)

        return public_model_fn

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint, or `None` before training."""
        return checkpoints.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the latest checkpoint.

        Raises:
            ValueError: If the model is not trained.
        """
        return checkpoints.variable_names(self.model_dir)

    def get_variable_value(self, name: str | Sequence[str]) -> np.ndarray | list[np.ndarray]:
        """Returns the value of a variable in the latest checkpoint.

        Args:
            name: A name, or a list of names (which the original does not take).

        Returns:
            The value, or a list of values.

        Raises:
            ValueError: If the model is not trained.
            tf.errors.NotFoundError: If it has no such variable.
        """
        if isinstance(name, str):
            return checkpoints.variable_value(self.model_dir, name)
        if not isinstance(name, Iterable):
            raise TypeError(
                f"name must be the name of a variable or a list of names; got {name!r}."
            )
        return [checkpoints.variable_value(self.model_dir, each) for each in name]

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder of an evaluation's events.

        Args:
            name: Name of the evaluation. Defaults to `None`, the unnamed one.
        """
        return os.path.join(self.model_dir, "eval" if not name else f"eval_{name}")

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[v1.train.CheckpointSaverListener] | None = None,
    ) -> Self:
        """Trains the model.

        Goes on from the latest checkpoint and writes one at the end.

        Args:
            input_fn: Returns the training data: a `tf.data.Dataset` of (features, labels), or
                the tensors themselves.
            hooks: Hooks of the session. Defaults to `None`.
            steps: Steps to make now. Defaults to `None`: until the data ends.
            max_steps: Global step to stop at; excludes `steps`. Defaults to `None`.
            saving_listeners: Listeners notified of every checkpoint. Defaults to `None`.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the steps do not hold, if this process is a ps or an evaluator, or
                from a function that the user gave.
            TypeError: If a hook or listener is of the wrong type.
            NanLossError: If the loss became NaN.
        """
        if self._config.task_type in (TaskType.EVALUATOR, TaskType.PS):
            raise ValueError(
                f"Train has been called wrong configuration: this task is {self._config.task_type} "
                "in TF_CONFIG. Please use train_and_evaluate, which starts the part of each task."
            )
        self._calls.check_train_steps(steps, max_steps)
        steps, max_steps = whole_steps(steps), whole_steps(max_steps)
        if max_steps is not None and checkpoints.global_step_of(self.model_dir) >= max_steps:
            _logger.info("Skipping training since max_steps has already saved.")
            return self
        all_hooks = _spec_checks.check_hooks(hooks, message=_SESSION_HOOKS)
        listeners = check_listeners(saving_listeners)
        told = self._calls.told_of_training()
        with (
            events_of(self.model_dir),
            followed(told.mode(self._config), may_draw=has_terminal(self._config)) as progress,
            call_graph(self._config),
        ):
            with progress.phase(TRACE):
                plan, own_hooks = self._calls.plan_training(
                    input_fn, steps=steps, max_steps=max_steps
                )
            # Values of a warm start would be overwritten by a checkpoint's, so none is read then.
            if not self.latest_checkpoint():
                if unnamed := checkpoints.unnamed_checkpoints(self.model_dir):
                    _logger.warning(
                        "Training starts from scratch in %s.%s", self.model_dir, unnamed
                    )
                self._warm_start()
            with progress.phase(TRAIN):
                progress.place(plan.ran_on)
                training.train(
                    plan,
                    settings=self._config_of_runs,
                    master=self._calls.session_master(ModeKeys.TRAIN),
                    hooks=[*own_hooks, *all_hooks],
                    saving_listeners=listeners,
                    reporting=Reporting(
                        progress=progress,
                        steps=steps,
                        max_steps=max_steps,
                        rows_per_step=told.rows_per_step,
                        every_steps=told.every_steps,
                    ),
                )
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates the model.

        Args:
            input_fn: Returns the evaluation data, as in `train`.
            steps: Batches to evaluate. Defaults to `None`: until the data ends.
            hooks: Hooks of the session. Defaults to `None`.
            checkpoint_path: Checkpoint to evaluate. Defaults to the latest; where there is
                none, the variables are initialized.
            name: Name of the evaluation, for its events. Defaults to `None`.

        Returns:
            Metric name -> NumPy value, with `loss` (the mean of the batch losses) and
            `global_step`.

        Raises:
            ValueError: If the steps do not hold, the data is empty, or from a function that
                the user gave.
        """
        return dict(
            self.evaluate_result(
                input_fn, steps=steps, hooks=hooks, checkpoint_path=checkpoint_path, name=name
            ).metrics
        )

    def evaluate_result(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
        variable_values: Mapping[str, Any] | None = None,
    ) -> EvalResult:
        """Evaluates the model and returns more than `evaluate`: rows, loss by rows, seconds.

        Ours; the original has no such method. `variable_values` is name of a variable -> the value
        to evaluate it with, instead of a checkpoint's; it defaults to `None`. The other arguments,
        and errors, are those of `evaluate`.

        Returns:
            The result.
        """
        self._calls.check_eval_steps(steps)
        steps = whole_steps(steps)
        all_hooks = list(_spec_checks.check_hooks(hooks, message=_SESSION_HOOKS))
        if steps is None:
            all_hooks.append(SayRowsRead())
        if variable_values is None:
            checkpoint_path = _as_text(checkpoint_path) or self.latest_checkpoint()
        if not checkpoint_path and variable_values is None:
            self._say_untrained("evaluate")
        with (
            events_of(self.model_dir),
            followed(self._config.progress, may_draw=has_terminal(self._config)) as progress,
            call_graph(self._config),
        ):
            with progress.phase(TRACE):
                place = self._calls.place(input_fn, ModeKeys.EVAL)
                plan, own_hooks = place.plan_evaluation(steps=steps)
            if variable_values is not None:
                plan = with_values(plan, variable_values)
            elif not checkpoint_path:
                self._warm_start()
            with progress.phase(EVALUATE):
                progress.place(plan.ran_on)
                result = evaluation.evaluate(
                    plan,
                    settings=self._config_of_runs,
                    master=self._calls.session_master(ModeKeys.EVAL),
                    hooks=[*own_hooks, *all_hooks],
                    checkpoint_path=checkpoint_path,
                    progress=progress,
                    steps=steps,
                )
            write_evaluation_events(result, output_dir=self.eval_dir(name))
        return result

    def build_graphs(
        self,
        *,
        eval_input_fn: Callable[..., Any] | None = None,
        eval_steps: int | None = None,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
    ) -> tuple[MetaGraph, ...]:
        """Builds the graphs of an evaluation and of an export, and runs nothing.

        Ours; the original has no such method. Called before a training, it finds what would fail
        only after it: a model_fn, an input_fn or a receiver that fails in modes EVAL and PREDICT.

        Args:
            eval_input_fn: Returns the evaluation data. Defaults to `None`: no evaluation.
            eval_steps: Batches to evaluate. Defaults to `None`: until the data ends.
            serving_input_receiver_fn: As in `export_saved_model`. Defaults to `None`: no export.

        Returns:
            The metagraphs of the export.

        Raises:
            ValueError: As `evaluate` and `export_saved_model` raise it, or from a function that the
                user gave.
        """
        if eval_input_fn is not None:
            self._calls.check_eval_steps(eval_steps)
            self._evaluation_scaffold(eval_input_fn, eval_steps)
        if serving_input_receiver_fn is None:
            return ()
        return tuple(
            build_meta_graphs(
                self._calls.call_model_for_export,
                {ModeKeys.PREDICT: serving_input_receiver_fn},
                random_seed=self._config.tf_random_seed,
                **self._calls.export_options(),
            )
        )

    def export_graphs(
        self,
        export_dir_base: str,
        meta_graphs: Sequence[MetaGraph],
        *,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Exports what `build_graphs` has returned, with the variables of a checkpoint.

        Ours; the original has no such method. A training whose graphs are checked before its first
        step need not trace them again after its last.

        Args:
            export_dir_base: Folder to make the timestamped folder in.
            meta_graphs: The metagraphs, the one for CPU hosts first.
            checkpoint_path: Checkpoint to export. Defaults to the latest.

        Returns:
            The path of the export.

        Raises:
            ValueError: If there is no checkpoint, or it lacks a variable of the graphs.
        """
        return export_meta_graphs(
            meta_graphs,
            export_dir_base=export_dir_base,
            checkpoint_path=self._checkpoint_to_export(checkpoint_path),
            session_config=self._config.session_config,
        )

    def _checkpoint_to_export(self, checkpoint_path: str | None) -> str:
        return find_checkpoint(
            checkpoint_path or self.latest_checkpoint(),
            model_dir=self.model_dir,
            warm_start=self._warm_start_settings,
        )

    def _evaluation_scaffold(
        self, input_fn: Callable[..., Any], steps: int | None
    ) -> v1.train.Scaffold:
        """Traces an evaluation that is not run; returns the scaffold that it would have."""
        with call_graph(self._config):
            place = self._calls.place(input_fn, ModeKeys.EVAL)
            plan, _ = place.plan_evaluation(steps=whole_steps(steps))
            return plan.template.make_scaffold()

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions.

        Nothing runs, not even a check, before the generator is first advanced. Closing it, or
        breaking out of a loop over it, closes its session.

        Args:
            input_fn: Returns the features; labels of its Dataset are dropped.
            predict_keys: Predictions to keep. Defaults to `None`, all.
            hooks: Hooks of the session. Defaults to `None`.
            checkpoint_path: Checkpoint to use. Defaults to the latest; where there is none,
                the variables are initialized.
            yield_single_examples: Whether rows are yielded one by one. Defaults to `True`;
                `False` yields whole batches.

        Yields:
            Rows or batches of predictions.

        Raises:
            ValueError: If none of the keys is there, or rows are requested and the predictions of a batch differ in
                length.
        """
        all_hooks = _spec_checks.check_hooks(hooks, message=_SESSION_HOOKS)
        checkpoint_path = _as_text(checkpoint_path) or self.latest_checkpoint()
        if not checkpoint_path:
            self._say_untrained("predict")
        with call_graph(self._config):
            place = self._calls.place(input_fn, ModeKeys.PREDICT)
            plan, own_hooks = place.plan_prediction(predict_keys)
            if not checkpoint_path:
                self._warm_start()
        batches = prediction.predict_batches(
            plan,
            settings=self._config_of_runs,
            master=self._calls.session_master(ModeKeys.PREDICT),
            hooks=[*own_hooks, *all_hooks],
            checkpoint_path=checkpoint_path,
        )
        progress = unfollowed(self._config.progress, may_draw=has_terminal(self._config))
        # The graph's context has ended above: a generator that holds a default graph while it is
        # suspended would leave it to the caller's own code.
        with contextlib.closing(batches), progress.phase(PREDICT):
            told = prediction.told(batches, progress)
            yield from single_rows(told) if yield_single_examples else told

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Exports the model for serving, or its graph of training or evaluation.

        Examples:
            >>> from tfx_tpu_trainer.estimator import BaselineRegressor, export, inputs
            >>> from tfx_tpu_trainer.serving import load_serving
            >>> import numpy as np
            >>> import tensorflow as tf
            >>> rows = np.full(8, 4.0, np.float32)
            >>> input_fn = inputs.numpy_input_fn({"x": rows}, rows, num_epochs=None, shuffle=False)
            >>> estimator = BaselineRegressor(model_dir="runs/fours", optimizer="SGD")
            >>> estimator = estimator.train(input_fn, max_steps=5)
            >>> receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None])})
            >>> path = estimator.export_saved_model("exported", receiver_fn).decode()
            >>> served = load_serving(path).signatures["predict"](x=tf.constant([0.0, 1.0]))
            >>> served["predictions"].shape.as_list()
            [2, 1]

        Args:
            export_dir_base: Folder to make the timestamped folder in.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`; a `SupervisedInputReceiver`
                in the other modes.
            assets_extra: Name below `assets.extra` -> file to copy. Defaults to `None`.
            as_text: Whether the model is written as text. Defaults to `False`.
            checkpoint_path: Checkpoint to export. Defaults to the latest.
            experimental_mode: `"infer"`, the default; `"eval"` or `"train"`, for CPUs only.

        Returns:
            The path of the export.

        Raises:
            ValueError: If there is no checkpoint or no receiver function, or the mode is
                another one.
        """
        return self._export(
            export_dir_base,
            {experimental_mode: serving_input_receiver_fn},
            checkpoint_path,
            assets_extra=assets_extra,
            as_text=as_text,
        )

    def experimental_export_all_saved_models(
        self,
        export_dir_base: str,
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Exports the graphs of several modes into one SavedModel with one set of variables.

        `input_receiver_fn_map` is mode -> input receiver function; the other arguments, and
        errors, are those of `export_saved_model`.

        Returns:
            The path of the export.
        """
        return self._export(
            export_dir_base,
            input_receiver_fn_map,
            checkpoint_path,
            assets_extra=assets_extra,
            as_text=as_text,
        )

    def export_savedmodel(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """Exports as `export_saved_model` does; this is its old, deprecated name.

        `strip_default_attrs` tells whether attributes that have their default value are left
        out, which the new name always does; the other arguments, and errors, are the same.

        Returns:
            The path of the export.
        """
        _logger.warning(
            "export_savedmodel is deprecated: it has been renamed, use export_saved_model instead."
        )
        return self._export(
            export_dir_base,
            {ModeKeys.PREDICT: serving_input_receiver_fn},
            checkpoint_path,
            assets_extra=assets_extra,
            as_text=as_text,
            strip_default_attrs=strip_default_attrs,
        )

    def _export(
        self,
        export_dir_base: str,
        input_receiver_fns: Mapping[str, Callable[[], Any]],
        checkpoint_path: str | None,
        **options: Any,
    ) -> bytes:
        check_receiver_fns(input_receiver_fns)
        return export_saved_model(
            export_dir_base=export_dir_base,
            call_model=self._calls.call_model_for_export,
            input_receiver_fns=input_receiver_fns,
            checkpoint_path=self._checkpoint_to_export(checkpoint_path),
            random_seed=self._config.tf_random_seed,
            session_config=self._config.session_config,
            **self._calls.export_options(),
            **options,
        )

    def _say_untrained(self, doing: str) -> None:
        """Logs, in the original's line, that variables are initialized; warns unless a warm start is meant."""
        _logger.info(
            "Could not find trained model in model_dir: %s, running initialization to %s.",
            self.model_dir,
            doing,
        )
        if self._warm_start_settings is None:
            _logger.warning(
                "%s runs on variables that were never trained: model_dir has no latest checkpoint.%s",
                doing,
                checkpoints.unnamed_checkpoints(self.model_dir),
            )

    def _warm_start(self) -> None:
        if self._warm_start_settings is not None:
            _logger.info("Warm-starting with WarmStartSettings: %s", self._warm_start_settings)
            warm_start(self._warm_start_settings)

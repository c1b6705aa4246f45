"""The Estimator: its arguments and its public methods."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator import _calls
from tfx_tpu_trainer.estimator._calls import (
    EstimatorCalls,
    check_members_are_not_overridden,
    complete_config,
)
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import EvalResult
from tfx_tpu_trainer.estimator._evaluations import OpenEvaluation
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._user_calls import argument_names, as_params, check_model_fn
from tfx_tpu_trainer.estimator._warm_start import as_warm_start_settings
from tfx_tpu_trainer.estimator.export._meta_graph import MetaGraph

if TYPE_CHECKING:
    from typing_extensions import Self

v1 = tf.compat.v1
_logger = tf.get_logger()


class Estimator:
    """Trains, evaluates, predicts with and exports a model_fn; mirrors `tf.estimator.Estimator`.

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

    # A TPUEstimator gives its model_fn a batch size in params even if there are no others.
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
            model_fn: Takes `features` and optionally `labels`, `mode`, `params` and
                `config`; returns an `EstimatorSpec`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else
                to a temporary folder.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            params: Passed to model_fn and input_fn as `params`. Defaults to `None`, an empty
                dict.
            warm_start_from: A checkpoint, a SavedModel or `WarmStartSettings` with the variables' initial values.
                Defaults to `None`.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If model_fn is not callable, or params is not a dict.
        """
        # Called on the class, with the instance as the argument, as in the original: AdaNet replaces
        # the method by a static one.
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

    # Made for each use, since programs change private attributes of the original between calls, for
    # example `estimator._params["rate"] = 0.1`, and Neural Structured Learning wraps `_model_fn`.
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

    # AdaNet replaces and calls these two methods of the original.
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
            name: A name, or a list of names, which only this estimator takes.

        Returns:
            The value, or a list of values.

        Raises:
            ValueError: If the model is not trained.
            tf.errors.NotFoundError: If the model lacks the variable.
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
        """Trains the model from the latest checkpoint on, and saves one at the end.

        Args:
            input_fn: Returns the training data: a `tf.data.Dataset` of (features, labels), or
                the tensors themselves.
            hooks: Hooks of the session. Defaults to `None`.
            steps: Steps to run now. Defaults to `None`: until the data ends.
            max_steps: Global step to stop at; excludes `steps`. Defaults to `None`.
            saving_listeners: Listeners notified of every checkpoint. Defaults to `None`.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the steps are invalid, if this process is a ps or an evaluator, or
                if the user's functions raise it.
            TypeError: If a hook or listener is of the wrong type.
            NanLossError: If the loss becomes NaN.
        """
        _calls.train(self, input_fn, hooks, steps, max_steps, saving_listeners)
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
            checkpoint_path: Checkpoint to evaluate. Defaults to the latest; without one, the
                variables are initialized.
            name: Name of the evaluation, for its events. Defaults to `None`.

        Returns:
            Metric name -> NumPy value, with `loss` (the mean of the batch losses) and
            `global_step`.

        Raises:
            ValueError: If the steps are invalid, the data is empty, or the user's functions raise
                it.
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
    ) -> EvalResult:
        """Evaluates the model and also returns the rows, the loss averaged over them and the seconds.

        The original lacks this method. The arguments and the errors are those of `evaluate`.

        Returns:
            The result.
        """
        evaluation = OpenEvaluation(self, input_fn, steps=steps, hooks=hooks)
        return evaluation.evaluate(checkpoint_path, name=name)

    def build_graphs(self, serving_input_receiver_fn: Callable[[], Any]) -> tuple[MetaGraph, ...]:
        """Builds the graphs of an export, and runs nothing.

        The original lacks this method. Before a training, it finds mistakes that would show only
        afterwards: a model_fn or a receiver that fails in mode PREDICT.

        Args:
            serving_input_receiver_fn: As in `export_saved_model`.

        Returns:
            The metagraphs of the export.

        Raises:
            ValueError: If `export_saved_model` would raise it.
        """
        return _calls.build_export(self, serving_input_receiver_fn)

    def export_graphs(
        self,
        export_dir_base: str,
        meta_graphs: Sequence[MetaGraph],
        *,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Exports the graphs that `build_graphs` returned, with the variables of a checkpoint.

        The original lacks this method. A training that checks its graphs before the first step
        does not trace them again after the last.

        Args:
            export_dir_base: Folder to make the timestamped folder in.
            meta_graphs: The metagraphs, the one for CPU hosts first.
            checkpoint_path: Checkpoint to export. Defaults to the latest.

        Returns:
            The path of the export.

        Raises:
            ValueError: If there is no checkpoint, or it lacks a variable of the graphs.
        """
        return _calls.export_graphs(self, export_dir_base, meta_graphs, checkpoint_path)

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions.

        Nothing runs, not even a check, before the generator is first advanced. Closing the
        generator, or breaking out of a loop over it, closes its session.

        Args:
            input_fn: Returns the features; labels of its Dataset are dropped.
            predict_keys: Predictions to keep. Defaults to `None`, all.
            hooks: Hooks of the session. Defaults to `None`.
            checkpoint_path: Checkpoint to use. Defaults to the latest; without one, the variables
                are initialized.
            yield_single_examples: Whether rows are yielded one by one. Defaults to `True`;
                `False` yields whole batches.

        Yields:
            Rows or batches of predictions.

        Raises:
            ValueError: If the model predicts none of the keys, or if rows are requested and the
                predictions of a batch differ in length.
        """
        return _calls.predict(
            self, input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
        )

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Exports the model for serving, or its graph for training or evaluation.

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
            assets_extra: Maps names below `assets.extra` to files to copy. Defaults to `None`.
            as_text: Whether the SavedModel is written as text. Defaults to `False`.
            checkpoint_path: Checkpoint to export. Defaults to the latest.
            experimental_mode: `"infer"`, the default, or `"eval"` or `"train"`, for CPUs only.

        Returns:
            The path of the export.

        Raises:
            ValueError: If there is no checkpoint or no receiver function, or if the mode is none
                of these.
        """
        return _calls.export(
            self,
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

        `input_receiver_fn_map` maps modes to receiver functions; the other arguments and the
        errors are those of `export_saved_model`.

        Returns:
            The path of the export.
        """
        return _calls.export(
            self,
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

        With `strip_default_attrs`, attributes that have their default value are left out, which
        the new name always does. The other arguments and the errors are the same.

        Returns:
            The path of the export.
        """
        _logger.warning(
            "export_savedmodel is deprecated: it has been renamed, use export_saved_model instead."
        )
        return _calls.export(
            self,
            export_dir_base,
            {ModeKeys.PREDICT: serving_input_receiver_fn},
            checkpoint_path,
            assets_extra=assets_extra,
            as_text=as_text,
            strip_default_attrs=strip_default_attrs,
        )


def check_is_estimator(estimator: Any) -> None:
    """Rejects what is not an Estimator."""
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"`estimator` must have type `tf.estimator.Estimator`. Got: {type(estimator)}"
        )

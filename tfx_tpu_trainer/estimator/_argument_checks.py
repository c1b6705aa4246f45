"""Checks arguments that a program gives: numbers, lists, and a RunConfig's values and strategies."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import check_is_no_pattern, path_text
from tfx_tpu_trainer._support.progress import MODES
from tfx_tpu_trainer.estimator._user_calls import positional_names

v1 = tf.compat.v1
_logger = tf.get_logger()


def holds(name: str, value: Any, condition: Callable[[Any], Any]) -> bool:
    """Returns whether a number meets a condition; NaN meets none."""
    try:
        return bool(condition(value))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number; got {value!r}.") from None


def check_no_tensor(name: str, value: Any) -> None:
    """Rejects a tensor, whose value an estimator can't know before its graph runs."""
    if isinstance(value, tf.Tensor):
        raise TypeError(f"{name} must be a number; got {value!r}. Give its value, int(...).")


def check_positive(name: str, value: Any) -> None:
    """Checks that a number is `None` or positive."""
    check_no_tensor(name, value)
    if value is not None and not holds(name, value, lambda number: number > 0):
        raise ValueError(f"Must specify {name} > 0, given: {value}")


def check_is_number(name: str, value: Any) -> None:
    """Checks that a value is `None` or a number."""
    if value is not None:
        holds(name, value, lambda number: number > 0)


def as_items(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Returns the items of a list; none for `None`."""
    if isinstance(value, Iterable):
        return tuple(value)
    if value:
        kind = type(value).__name__
        raise TypeError(
            f"{kind!r} object is not iterable: {name} must be a list, such as {example}; got {value!r}."
        )
    return ()


def one_model_dir(given: str | os.PathLike[str] | None, from_tf_config: str | None) -> str | None:
    """Returns the model folder, from a RunConfig's argument or from TF_CONFIG."""
    model_dir = None if given is None else path_text("model_dir", given)
    if model_dir == "":
        raise ValueError("model_dir should be non-empty; leave it out for a temporary folder.")
    if from_tf_config and model_dir and from_tf_config != model_dir:
        raise ValueError(
            "`model_dir` provided in RunConfig construct, if set, must have the same value as "
            f"the model_dir in TF_CONFIG. model_dir: {model_dir!r}, TF_CONFIG's: "
            f"{from_tf_config!r}. Give it in one place."
        )
    if from_tf_config:
        _logger.info("Using model_dir in TF_CONFIG: %s", from_tf_config)
    return model_dir or from_tf_config


def _is_range_of_steps(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(type(step) is int for step in value)
        and 1 <= value[0] <= value[1]
    )


def check_values(values: Mapping[str, Any]) -> None:
    """Checks the arguments of a RunConfig by name; `None` is always valid."""

    def check(name: str, holds: Callable[[Any], bool], must: str) -> None:
        value = values[name]
        if value is not None and not holds(value):
            raise ValueError(f"{name} {must}; got {value!r}.")

    def check_number(name: str, condition: Callable[[Any], bool], must: str) -> None:
        check(name, lambda value: holds(name, value, condition), must)

    def is_int(value: Any) -> bool:
        return isinstance(value, int)

    check("model_dir", lambda path: path != "", "should be non-empty")
    check_is_no_pattern("model_dir", values["model_dir"] or "")
    for name in ("save_summary_steps", "save_checkpoints_steps", "log_step_count_steps"):
        check_no_tensor(name, values[name])
    for name in (
        "save_summary_steps",
        "save_checkpoints_steps",
        "save_checkpoints_secs",
        "keep_checkpoint_max",
    ):
        check_number(name, lambda number: number >= 0, "should be >= 0")
    for name in (
        "keep_checkpoint_every_n_hours",
        "log_step_count_steps",
        "session_creation_timeout_secs",
        "first_checkpoint_secs",
        "stall_timeout_secs",
    ):
        check_number(name, lambda number: number > 0, "should be > 0")
    check(
        "session_config",
        lambda config: isinstance(config, v1.ConfigProto),
        "must be instance of ConfigProto",
    )
    check(
        "jit_compile",
        lambda value: isinstance(value, bool) or value == "auto",
        'must be None, False, True or "auto"',
    )
    for name in ("save_input_position", "gradient_norms", "histograms"):
        check(name, lambda value: isinstance(value, bool), "must be True or False")
    check(
        "profile_steps",
        _is_range_of_steps,
        "must be the first and the last step, counted from 1, as (100, 105)",
    )
    check(
        "progress",
        lambda value: value in MODES,
        f"must be one of {', '.join(map(repr, MODES))}, or None, which is 'off'",
    )
    check("tf_random_seed", is_int, "must be integer")
    check("experimental_max_worker_delay_secs", is_int, "must be an integer if set")
    check(
        "device_fn",
        lambda function: callable(function) and positional_names(function) == ("op",),
        'must be callable with exactly one argument "op"',
    )
    check(
        "protocol",
        lambda protocol: protocol in ("grpc", "grpc+verbs"),
        "should be grpc or grpc+verbs",
    )
    for name in ("train_distribute", "eval_distribute"):
        _check_strategy(name, values[name])
    _check_strategies(values["experimental_distribute"])


_STRATEGIES = (tf.distribute.Strategy, v1.distribute.Strategy)


def _check_strategy(name: str, strategy: Any) -> None:
    if strategy is None:
        return
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ValueError(
            "Please use `tf.compat.v1.distribute.experimental.ParameterServerStrategy` for "
            "parameter server strategy with estimator, or leave the strategy out: a TF_CONFIG with "
            f"ps tasks is enough. {name}={strategy!r} is TensorFlow 2's, which schedules eager "
            "functions and can't run a model_fn's graph."
        )
    if not isinstance(strategy, _STRATEGIES):
        raise ValueError(
            f"{name} must be an instance of tf.distribute.Strategy, such as "
            f"tf.distribute.MirroredStrategy(); got {strategy!r}."
        )


def _check_strategies(both: Any) -> None:
    """Checks `experimental_distribute` of a RunConfig."""
    if both is None:
        return
    for name in ("train_distribute", "eval_distribute"):
        _check_strategy(f"experimental_distribute.{name}", getattr(both, name, None))
    if getattr(both, "remote_cluster", None):
        raise ValueError(
            "experimental_distribute.remote_cluster is not supported: a single client for all "
            f"tasks of {both.remote_cluster!r} existed only in TensorFlow 1. Start the program "
            "once for each task, with TF_CONFIG, and call train_and_evaluate."
        )


def is_no_strategy(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy distributes nothing: `None`, or the default of `tf.distribute`."""
    return strategy is None or type(strategy).__name__.startswith("_DefaultDistribution")


def is_parameter_server(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy is the parameter server strategy of `tf.compat.v1`, which runs no steps itself."""
    # Its variables are those of TF_CONFIG's ps tasks, in each worker's own graph.
    return isinstance(strategy, v1.distribute.experimental.ParameterServerStrategy)


def leads_steps(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy runs the steps, in each process; else sessions do."""
    return not is_no_strategy(strategy) and not is_parameter_server(strategy)

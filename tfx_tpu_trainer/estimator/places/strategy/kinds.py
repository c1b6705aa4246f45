"""Checks the `tf.distribute` strategies of a RunConfig, and distinguishes those that run differently."""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

_STRATEGIES = (tf.distribute.Strategy, v1.distribute.Strategy)


def check_strategy(name: str, strategy: Any) -> None:
    """Checks a strategy of a RunConfig."""
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


def check_both(both: Any) -> None:
    """Checks `experimental_distribute` of a RunConfig."""
    if both is None:
        return
    for name in ("train_distribute", "eval_distribute"):
        check_strategy(f"experimental_distribute.{name}", getattr(both, name, None))
    if getattr(both, "remote_cluster", None):
        raise ValueError(
            "experimental_distribute.remote_cluster is not supported: a single client for all "
            f"tasks of {both.remote_cluster!r} existed only in TensorFlow 1. Start the program "
            "once for each task, with TF_CONFIG, and call train_and_evaluate."
        )


def is_none(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy distributes nothing: `None`, or the default of `tf.distribute`."""
    return strategy is None or type(strategy).__name__.startswith("_DefaultDistribution")


def is_parameter_server(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy is the parameter server strategy of `tf.compat.v1`, which runs no steps itself.

    Its variables are those of TF_CONFIG's ps tasks, in each worker's own graph.
    """
    return isinstance(strategy, v1.distribute.experimental.ParameterServerStrategy)


def connects_tasks(config: Any) -> bool:
    """Returns whether the training strategy of a RunConfig connects the tasks of TF_CONFIG itself."""
    return leads_steps(_training_strategy(config))


def leads_steps(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy runs the steps, in each process; else sessions do."""
    return not is_none(strategy) and not is_parameter_server(strategy)


def _training_strategy(config: Any) -> tf.distribute.Strategy | None:
    both = config.experimental_distribute
    return getattr(both, "train_distribute", None) or config.train_distribute

"""Hooks: early stopping and evaluation in memory."""

import pathlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.estimator.words.stacks import Stack


def _early(t: Stack, should_stop_fn: Any = lambda: False, **options: Any) -> Any:
    return t.est.experimental.make_early_stopping_hook(t.estimator(), should_stop_fn, **options)


def _stopping(t: Stack) -> Any:
    estimator = t.estimator()
    hook = t.est.experimental.make_early_stopping_hook(
        estimator, lambda: True, run_every_secs=None, run_every_steps=1
    )
    estimator.train(t.input_fn, hooks=[hook], steps=3)


def _stopping_by_metric(t: Stack, make: str, *arguments: Any) -> Any:
    estimator = t.estimator()
    hook = getattr(t.est.experimental, make)(
        estimator, "loss", *arguments, run_every_secs=None, run_every_steps=1
    )
    for steps in (1, 2, 3):
        estimator.train(t.input_fn, hooks=[hook], steps=steps)
        estimator.evaluate(t.input_fn, steps=1)


def _in_memory(t: Stack, estimator: Any = None, **options: Any) -> Any:
    return t.est.experimental.InMemoryEvaluatorHook(
        estimator or t.estimator(), t.input_fn, steps=1, **options
    )


def _in_memory_of(t: Stack, scaffold: Callable[[], Any]) -> Any:
    """Trains beside an evaluation in memory of a model with this scaffold."""
    estimator = t.estimator(
        lambda features, labels, mode: t.spec(features, labels, mode, scaffold=scaffold())
    )
    estimator.train(t.input_fn, hooks=[_in_memory(t, estimator)], steps=1)


def _clustered(t: Stack) -> Any:
    t.tf_config(cluster={"chief": ["h:1"], "worker": ["h:2"]}, task={"type": "chief", "index": 0})
    return _in_memory(t, t.estimator(config=t.est.RunConfig(t.folder)))


def _saver() -> Any:
    return tf.compat.v1.train.Scaffold(saver=tf.compat.v1.train.Saver())


def _init_fn() -> Any:
    return tf.compat.v1.train.Scaffold(init_fn=lambda scaffold, session: None)


def _in_memory_beside_a_table(t: Stack) -> None:
    """Trains with a table, which is saved beside the variables."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        if mode == "train":
            tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
        return t.spec(features, labels, mode)

    estimator = t.estimator(model_fn)
    estimator.train(t.input_fn, hooks=[_in_memory(t, estimator)], steps=1)


def _stop_at(t: Stack, last_step: int | None) -> Any:
    """The hook of a worker."""
    t.tf_config(cluster={"chief": ["h:1"], "worker": ["h:2"]}, task={"type": "worker", "index": 0})
    return t.est.experimental.make_stop_at_checkpoint_step_hook(t.estimator(), last_step)


def _stop_at_without_step(t: Stack) -> None:
    """A session of a graph that has no global step."""
    t.graph()
    hook = _stop_at(t, 1)
    with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]):
        pass


def _stopping_on_damaged_events(t: Stack) -> None:
    """Reads metrics whose event file has other bytes in its middle."""
    estimator = t.estimator()
    hook = t.est.experimental.stop_if_higher_hook(
        estimator, "loss", 1e9, run_every_secs=None, run_every_steps=1
    )
    estimator.train(t.input_fn, hooks=[hook], steps=1)
    estimator.evaluate(t.input_fn, steps=1)
    [path] = tf.io.gfile.glob(f"{estimator.eval_dir()}/*tfevents*")
    data = bytearray(pathlib.Path(path).read_bytes())
    data[len(data) // 2] ^= 0xFF
    pathlib.Path(path).write_bytes(data)
    estimator.train(t.input_fn, hooks=[hook], steps=1)


CASES: dict[str, Callable[[Stack], Any]] = {
    "early_stopping_of_a_string": lambda t: t.est.experimental.make_early_stopping_hook(
        "a", lambda: True
    ),
    "early_stopping_by_seconds_and_steps": lambda t: _early(t, run_every_steps=1),
    "early_stopping_by_nothing": lambda t: _early(t, run_every_secs=None),
    "early_stopping_without_function": lambda t: _early(t, "a"),
    "early_stopping": _stopping,
    "early_stopping_above": lambda t: _stopping_by_metric(t, "stop_if_higher_hook", -1.0),
    "early_stopping_below": lambda t: _stopping_by_metric(t, "stop_if_lower_hook", 1e9),
    "early_stopping_without_decrease": lambda t: _stopping_by_metric(
        t, "stop_if_no_increase_hook", 1
    ),
    "in_memory_every_0": lambda t: _in_memory(t, every_n_iter=0),
    "in_memory_every_none": lambda t: _in_memory(t, every_n_iter=None),
    "in_memory_in_a_cluster": _clustered,
    "in_memory": lambda t: _in_memory_of(t, lambda: None),
    "in_memory_with_a_saver": lambda t: _in_memory_of(t, _saver),
    "in_memory_with_an_init_fn": lambda t: _in_memory_of(t, _init_fn),
    "in_memory_beside_a_table": _in_memory_beside_a_table,
    "stop_at_no_step": lambda t: _stop_at(t, None),
    "stop_at_without_a_global_step": _stop_at_without_step,
    "early_stopping_on_damaged_events": _stopping_on_damaged_events,
    "in_memory_without_input_fn": lambda t: t.est.experimental.InMemoryEvaluatorHook(
        t.estimator(), "a"
    ),
}

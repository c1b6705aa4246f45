"""train_and_evaluate, its specs, and exporters."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.estimator.words.stacks import Stack


def _train_spec(**options: Any) -> Callable[[Stack], Any]:
    return lambda t: t.est.TrainSpec(**{"input_fn": t.input_fn, "max_steps": 1, **options})


def _eval_spec(**options: Any) -> Callable[[Stack], Any]:
    return lambda t: t.est.EvalSpec(**{"input_fn": t.input_fn, "steps": 1, **options})


def _final(t: Stack, name: Any = "final") -> Any:
    return t.est.FinalExporter(name, _receiver(t))


def _receiver(t: Stack) -> Any:
    def receiver_fn() -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        return t.est.export.ServingInputReceiver({"x": x}, {"x": x})

    return receiver_fn


def _run(t: Stack, estimator: Any = None, train: Any = None, evaluation: Any = None) -> Any:
    return t.est.train_and_evaluate(
        estimator or t.estimator(),
        train or t.est.TrainSpec(t.input_fn, max_steps=1),
        evaluation or t.est.EvalSpec(t.input_fn, steps=1, start_delay_secs=0, throttle_secs=0),
    )


def _placed(t: Stack, kind: str, index: int = 0, **cluster: Any) -> Any:
    t.tf_config(cluster=cluster or {"chief": ["h:1"]}, task={"type": kind, "index": index})
    return t.estimator(config=t.est.RunConfig(t.folder))


def _exporting(t: Stack) -> Any:
    exporters = [
        _final(t),
        t.est.LatestExporter("latest", _receiver(t)),
        t.est.BestExporter("best", _receiver(t)),
    ]
    return _run(t, None, None, t.est.EvalSpec(t.input_fn, 1, exporters=exporters))


def _throttled(t: Stack) -> Any:
    config = t.est.RunConfig(t.folder, save_checkpoints_steps=1)
    return _run(
        t,
        t.estimator(config=config),
        t.est.TrainSpec(t.input_fn, max_steps=3),
        t.est.EvalSpec(t.input_fn, 1, throttle_secs=1000),
    )


def _best(t: Stack, **options: Any) -> Any:
    return t.est.BestExporter(**{"serving_input_receiver_fn": _receiver(t), **options})


def _best_of(t: Stack, first: Any, second: Any = None) -> Any:
    """What BestExporter says to two results of evaluations, one after the other."""
    exporter, estimator = _best(t), t.trained()
    for result in (first, second):
        exporter.export(estimator, f"{t.folder}/best", estimator.latest_checkpoint(), result, False)


def _evaluator_after_training(t: Stack) -> Any:
    """The evaluator of a cluster, where the training is over."""
    t.tf_config(cluster={"chief": ["h:1"]}, task={"type": "evaluator", "index": 0})
    return _run(t, t.trained())


def _chief_alone(t: Stack) -> Any:
    t.tf_config(cluster={"chief": ["localhost:1"]}, task={"type": "chief", "index": 0})
    return _run(t, t.estimator(config=t.est.RunConfig(t.folder)))


def _undeletable(t: Stack) -> Any:
    """An old export whose folder cannot be deleted: it is a file."""
    estimator, folder = t.trained(), f"{t.folder}/latest"
    os.makedirs(folder)
    exporter = t.est.LatestExporter("latest", _receiver(t), exports_to_keep=1)
    path = estimator.latest_checkpoint()
    for _ in range(2):
        exporter.export(estimator, folder, path, {}, False)


CASES: dict[str, Callable[[Stack], Any]] = {
    "train_input_fn_of_a_string": _train_spec(input_fn="a"),
    "train_max_steps_0": _train_spec(max_steps=0),
    "train_hook_of_another_type": _train_spec(hooks=["a"]),
    "train_listener_of_another_type": _train_spec(saving_listeners=["a"]),
    "eval_input_fn_of_a_string": _eval_spec(input_fn="a"),
    "eval_steps_0": _eval_spec(steps=0),
    "eval_name_of_a_number": _eval_spec(name=3),
    "eval_hook_of_another_type": _eval_spec(hooks=["a"]),
    "eval_delay_negative": _eval_spec(start_delay_secs=-1),
    "eval_throttle_negative": _eval_spec(throttle_secs=-1),
    "exporters_of_a_number": _eval_spec(exporters=3),
    "exporters_of_strings": _eval_spec(exporters=["a"]),
    "exporter_without_name": lambda t: _eval_spec(exporters=_final(t, ""))(t),
    "exporter_named_a_number": lambda t: _eval_spec(exporters=[_final(t, 3)])(t),
    "exporters_of_one_name": lambda t: _eval_spec(exporters=[_final(t), _final(t)])(t),
    "estimator_of_a_string": lambda t: _run(t, "a"),
    "train_spec_of_a_string": lambda t: _run(t, None, "a"),
    "eval_spec_of_a_string": lambda t: _run(t, None, None, "a"),
    "all_of_strings": lambda t: _run(t, "a", "a", "a"),
    "locally": _run,
    "locally_with_exporters": _exporting,
    "locally_throttled": _throttled,
    "locally_without_max_steps": lambda t: _run(
        t, None, t.est.TrainSpec(t.short_input_fn, max_steps=None)
    ),
    "locally_on_empty_input": lambda t: _run(
        t, None, t.est.TrainSpec(lambda: t.input_fn().take(0), max_steps=2)
    ),
    "locally_for_nothing_new": lambda t: _run(t, t.trained()),
    "task_unknown": lambda t: _run(t, _placed(t, "extra", chief=["h:1"], extra=["h:2"])),
    "evaluator_1": lambda t: _run(t, _placed(t, "evaluator", 1)),
    "evaluator_0": _evaluator_after_training,
    "chief_alone": _chief_alone,
    "best_without_compare_fn": lambda t: _best(t, compare_fn=None),
    "best_keeping_0": lambda t: _best(t, exports_to_keep=0),
    "best_compare_fn_without_best": lambda t: _best(t, compare_fn=lambda current_eval_result: 1),
    "best_compare_fn_without_current": lambda t: _best(t, compare_fn=lambda best_eval_result: 1),
    "best_compare_fn_of_more": lambda t: _best(
        t, compare_fn=lambda best_eval_result, current_eval_result, color: 1
    ),
    "best_of_no_loss": lambda t: _best_of(t, {"a": 1.0}, {"loss": 1.0}),
    "best_then_no_loss": lambda t: _best_of(t, {"loss": 1.0}, {"a": 1.0}),
    "best_of_nothing": lambda t: _best_of(t, {}, {}),
    "latest_keeping_0": lambda t: t.est.LatestExporter("a", _receiver(t), exports_to_keep=0),
    "latest_deletes": _undeletable,
}

"""train_and_evaluate, its specs, and exporters."""

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


def _undeletable(t: Stack, best: bool = False) -> Any:
    """An old export that is listed and not there: a link to nothing."""
    estimator, folder = t.trained(), f"{t.folder}/exports"
    os.makedirs(folder)
    os.symlink(f"{t.folder}/nothing", f"{folder}/0000000001")
    kind = t.est.BestExporter if best else t.est.LatestExporter
    exporter = kind("exports", _receiver(t), exports_to_keep=1)
    exporter.export(estimator, folder, estimator.latest_checkpoint(), {"loss": 1.0}, False)


def _evaluator_waiting(t: Stack, throttle_secs: float) -> Any:
    """The evaluator of a cluster that looks for a checkpoint twice and finds none."""
    t.tf_config(cluster={"chief": ["h:1"]}, task={"type": "evaluator", "index": 0})
    estimator = t.estimator()
    looks = [None]

    def latest_checkpoint() -> Any:
        if not looks:
            raise OSError("there was no checkpoint twice")
        return looks.pop()

    estimator.latest_checkpoint = latest_checkpoint
    spec = t.est.EvalSpec(t.input_fn, 1, start_delay_secs=0, throttle_secs=throttle_secs)
    return _run(t, estimator, None, spec)


def _evaluator_of_one_checkpoint(t: Stack) -> Any:
    """The evaluator of a cluster that finds the same checkpoint twice."""
    t.tf_config(cluster={"chief": ["h:1"]}, task={"type": "evaluator", "index": 0})
    estimator = t.trained()
    looks = [estimator.latest_checkpoint()] * 2

    def latest_checkpoint() -> Any:
        if not looks:
            raise OSError("there was no other checkpoint")
        return looks.pop()

    estimator.latest_checkpoint = latest_checkpoint
    return _run(t, estimator, t.est.TrainSpec(t.input_fn, max_steps=9))


def _locally_without_checkpoint(t: Stack) -> Any:
    estimator = t.estimator()
    estimator.latest_checkpoint = lambda: None
    return _run(t, estimator)


def _without_task(t: Stack) -> Any:
    """A configuration of a cluster that does not say which task this is."""

    class NoTask(t.est.RunConfig):  # type: ignore[misc]
        task_type = None

    t.tf_config(cluster={"chief": ["h:1"]}, task={"type": "chief", "index": 0})
    return _run(t, t.estimator(config=NoTask(t.folder)))


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
    "task_local": lambda t: _run(t, _placed(t, "local", chief=["h:1"], local=["h:2"])),
    "task_missing": _without_task,
    "locally_without_checkpoint": _locally_without_checkpoint,
    "evaluator_waiting": lambda t: _evaluator_waiting(t, 1),
    "evaluator_waiting_no_time": lambda t: _evaluator_waiting(t, 0),
    "evaluator_of_one_checkpoint": _evaluator_of_one_checkpoint,
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
    "best_deletes": lambda t: _undeletable(t, best=True),
}

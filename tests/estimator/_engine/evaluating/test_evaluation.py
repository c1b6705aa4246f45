"""What is said of a long evaluation, and how one that does not end is ended, in every place."""

import contextlib
import math
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import counting_model, stalled_training
from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tests.estimator._engine.templates import batches_of, make_template, settings_in
from tests.sweeps import mostly_swept
from tests.tensorflow_settings import deterministic_ops
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import (
    EvalResult,
    PreparedEvaluation,
    RefuseMoreRows,
    SayRowsRead,
    write_evaluation_events,
)
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import clock, is_time_up
from tfx_tpu_trainer.estimator._engine.evaluating.metric_ops import (
    IsolatedMetrics,
    NotIsolatedError,
)
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import InputTensors
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.host import plan_evaluation_on_host

v1 = tf.compat.v1


class TooManyError(Exception):
    """More rows than there can be."""


def _endless(params):
    rows = tf.data.Dataset.from_generator(
        lambda: iter(int, 1), output_signature=tf.TensorSpec((), tf.int64)
    )
    return counting_model.with_batches(rows, params)


def _slow(params):
    def late(batch):
        wait = tf.numpy_function(lambda row: time.sleep(0.02) or row, [batch["id"]], tf.int64)
        return {"id": tf.ensure_shape(wait, batch["id"].shape)}

    rows = tf.data.Dataset.range(80).map(lambda row: row % counting_model.ROWS)
    return counting_model.with_batches(rows, params).map(late)


@mostly_swept("place", ["host", "cores", "strategy"], kept=["host", "cores"])
def test_an_evaluation_of_more_rows_than_there_can_be_ends(tmp_path, place):
    estimator = stalled_training.make(tmp_path, place)
    hook = RefuseMoreRows(50, TooManyError, every_secs=0.05)
    with pytest.raises(TooManyError) as raised:
        estimator.evaluate(_endless, hooks=[hook])
    assert raised.value.args[0] > 50


def test_an_evaluation_within_the_limit_does_not_feel_it(tmp_path):
    estimator = stalled_training.make(tmp_path, "host")
    hook = RefuseMoreRows(80, TooManyError, every_secs=0.01)
    result = estimator.evaluate_result(_slow, hooks=[hook])
    assert result.num_examples == 80
    # The same hook may see several evaluations.
    assert estimator.evaluate_result(_slow, hooks=[hook]).num_examples == 80


def test_what_an_evaluation_has_read_is_said_from_time_to_time(tmp_path, caplog):
    class EachCall(tf.compat.v1.train.SessionRunHook):
        """Lets every batch be a call."""

        def before_run(self, run_context):
            """May look at the batch."""

    estimator = stalled_training.make(tmp_path, "host")
    with log_lines(caplog) as logged:
        estimator.evaluate(_slow, hooks=[SayRowsRead(0.1, 0.2), EachCall()])
    said = [line for line in logged if line.startswith("Evaluation has read")]
    assert said
    batches = [int(line.split()[3]) for line in said]
    assert batches == sorted(set(batches)) and 0 < batches[-1] <= 20
    assert said[0].startswith(
        f"Evaluation has read {batches[0]} batches ({4 * batches[0]} rows) in "
    )
    assert "evaluate(steps=...)" in said[0]


VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 20.0]


def _evaluate(
    folder,
    *,
    values=VALUES,
    batch_size: int = 3,
    steps: int | None = None,
    hooks=(),
    checkpoint=None,
    **fields,
) -> EvalResult:
    """Evaluates a model whose loss is the mean of its features.

    Fields that are functions are given the features, in the graph.
    """
    with fresh_graph():
        inputs = batches_of(values, batch_size)
        made = {
            name: field(inputs.features) if callable(field) else field
            for name, field in fields.items()
        }
        made.setdefault("loss", tf.reduce_mean(inputs.features))
        template = make_template("eval", features=inputs.features, **made)
        return _run(
            template, folder, hooks=[*inputs.hooks, *hooks], steps=steps, checkpoint=checkpoint
        )


def _run(template, folder, *, hooks=(), steps=None, checkpoint=None) -> EvalResult:
    """Evaluates a template of the default graph."""
    plan = plan_evaluation_on_host(template, steps=steps)
    return PreparedEvaluation(plan, settings=settings_in(folder), hooks=hooks).run(checkpoint)


def _metric(function, tensors):
    """An eval_metrics field."""
    return lambda features: HostFunction("eval_metrics", function, tensors(features))


def test_loss_by_rows_of_many_batches_is_summed_in_double_precision(tmp_path):
    # In float32 a sum beyond 2^24 no longer takes 1.0 more.
    result = _evaluate(tmp_path, values=[2.0**25, 1.0, 1.0, 1.0], batch_size=1)
    assert result.loss_by_rows == (2.0**25 + 3) / 4


@pytest.mark.behaviour(194, 202)
def test_without_metrics_there_are_loss_and_global_step(tmp_path):
    result = _evaluate(tmp_path)
    assert set(result.metrics) == {"loss", "global_step"}
    assert result.metrics["global_step"] == result.global_step == 0
    assert result.checkpoint_path is None
    assert 0 < result.seconds < 60


@pytest.mark.parametrize(
    "eval_metrics",
    [
        _metric(lambda x, weight: {"m": v1.metrics.mean(x * weight)}, lambda f: [f, 2.0]),
        _metric(
            lambda x, weight: {"m": v1.metrics.mean(x * weight)}, lambda f: {"weight": 2.0, "x": f}
        ),
    ],
    ids=["list", "dict"],
)
@pytest.mark.behaviour(195, 196)
def test_metric_fn_sees_every_row(tmp_path, eval_metrics):
    result = _evaluate(tmp_path, eval_metrics=eval_metrics)
    assert result.metrics["m"] == pytest.approx(2 * sum(VALUES) / len(VALUES))


@pytest.mark.behaviour(197)
def test_keys_that_the_function_does_not_take_are_a_type_error():
    with pytest.raises(TypeError, match="third"):
        HostFunction("eval_metrics", lambda first, second: 0, {"first": 1, "third": 3})()


def test_metrics_that_the_model_built_are_taken_too(tmp_path):
    result = _evaluate(
        tmp_path, eval_metric_ops=lambda features: {"m": v1.metrics.mean(features)}, steps=1
    )
    assert result.metrics["m"] == 2


@pytest.mark.behaviour(211)
def test_a_nested_value_comes_back_nested(tmp_path):
    def metric_fn(x):
        (mean, update), (total, total_update) = v1.metrics.mean(x), v1.metrics.mean(x * 10)
        return {"nested": ((mean, (total,)), tf.group(update, total_update))}

    result = _evaluate(tmp_path, eval_metrics=_metric(metric_fn, lambda f: [f]), steps=1)
    assert result.metrics["nested"] == (2.0, (20.0,))


def test_metric_fn_must_return_a_dict(tmp_path):
    with pytest.raises(
        TypeError, match=r"eval_metric_ops must be a dict, given: .* must return a dict"
    ):
        _evaluate(tmp_path, eval_metrics=_metric(v1.metrics.mean, lambda f: [f]))


@row(
    "estimator",
    "a metric whose name is a number",
    "The name of a metric must be a string, given: 7",
    "Write '7'.",
)
def test_a_metric_whose_name_is_no_string_is_refused(tmp_path, refused):
    def metric_fn(x):
        return {"mean": v1.metrics.mean(x), 7: v1.metrics.mean(x)}

    with refused(TypeError):
        _evaluate(tmp_path, eval_metrics=_metric(metric_fn, lambda f: [f]))


@pytest.mark.behaviour(209, 208)
def test_hooks_run_once_a_step_and_the_eval_step_counts(tmp_path):
    class Steps(v1.train.SessionRunHook):
        def begin(self):
            self.seen = []
            (self.eval_step,) = v1.get_collection(v1.GraphKeys.EVAL_STEP)
            self.value = self.eval_step.read_value()

        def after_run(self, run_context, run_values):
            self.seen.append(int(run_context.session.run(self.value)))

    hook = Steps()
    _evaluate(tmp_path, hooks=[hook])
    assert hook.seen == [1, 2, 3]


def test_rows_are_unknown_where_nothing_has_an_axis(tmp_path):
    with fresh_graph():
        inputs = InputTensors(features={"x": tf.constant(4.0)}, labels=None)
        template = make_template("eval", features=inputs.features, loss=inputs.features["x"])
        result = _run(template, tmp_path, steps=2)
    assert result.num_examples is None
    assert math.isnan(result.loss_by_rows)
    assert result.metrics["loss"] == 4


def test_rows_are_counted_on_labels_where_features_have_no_axis(tmp_path):
    with fresh_graph():
        template = make_template(
            "eval", features=tf.constant(4.0), labels=tf.zeros([5]), loss=tf.constant(1.0)
        )
        result = _run(template, tmp_path, steps=2)
    assert result.num_examples == 10


@pytest.mark.behaviour(270)
def test_a_local_init_op_joins_the_default_one(tmp_path):
    local = {}

    def make_scaffold():
        local["own"] = v1.Variable(0.0, collections=["own"], trainable=False)
        return v1.train.Scaffold(local_init_op=local["own"].assign(9.0, read_value=False))

    class ReadsOwn(v1.train.SessionRunHook):
        def begin(self):
            self.value = local["own"].read_value()

        def end(self, session):
            local["value"] = session.run(self.value)

    with fresh_graph():
        inputs = batches_of([1.0, 3.0], 2)
        template = make_template(
            "eval", loss=tf.reduce_mean(inputs.features), make_scaffold=make_scaffold
        )
        result = _run(template, tmp_path, hooks=[*inputs.hooks, ReadsOwn()])
    assert result.metrics["loss"] == 2
    assert local["value"] == 9


def _result(metrics: dict, *, step: int = 40, checkpoint: str | None = None) -> EvalResult:
    return EvalResult(
        metrics={**metrics, "global_step": np.int64(step)},
        loss_by_rows=0.5,
        num_examples=10,
        global_step=step,
        checkpoint_path=checkpoint,
        seconds=1.0,
    )


def _written(folder, *results: EvalResult) -> dict:
    with tf.Graph().as_default():
        for result in results:
            write_evaluation_events(result, output_dir=str(folder))
    return read_values(folder)


@pytest.mark.parametrize(
    "value", [np.float32(0.25), np.float64(0.25), 0.25, np.int64(3), np.int32(3), 3]
)
@pytest.mark.behaviour(215)
def test_numbers_are_scalars_at_the_checkpoints_step(tmp_path, value):
    assert _written(tmp_path, _result({"m": value})) == {"m": {40: value}}


@pytest.mark.behaviour(215)
def test_arrays_are_tensors(tmp_path):
    array = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    np.testing.assert_array_equal(_written(tmp_path, _result({"m": array}))["m"][40], array)


@pytest.mark.behaviour(215)
def test_serialized_summaries_are_split(tmp_path):
    parts = [v1.Summary.Value(tag="any", simple_value=value) for value in (1.0, 2.0)]
    values = _written(tmp_path, _result({"m": v1.Summary(value=parts).SerializeToString()}))
    assert values == {"m/0": {40: 1}, "m/1": {40: 2}}


@pytest.mark.behaviour(215)
def test_what_cannot_be_shown_is_left_out(tmp_path):
    metrics = {"loss": np.float32(1), "nested": (np.float32(1), np.float32(2)), "none": None}
    assert _written(tmp_path, _result(metrics)) == {"loss": {40: 1}, "loss_by_rows": {40: 0.5}}


def test_evaluations_of_one_folder_follow_each_other(tmp_path):
    results = [_result({"m": 1.0}, step=1), _result({"m": 2.0}, step=2)]
    assert _written(tmp_path, *results) == {"m": {1: 1, 2: 2}}


def test_it_evaluates_with_deterministic_ops(tmp_path):
    with deterministic_ops():
        assert _evaluate(tmp_path).num_examples == len(VALUES)


@pytest.mark.parametrize("switch", [contextlib.nullcontext, deterministic_ops])
@pytest.mark.parametrize(("seconds_ago", "is_up"), [(2.0, True), (0.0, False), (-2.0, True)])
def test_a_session_call_ends_after_its_time_and_when_the_clock_is_set_back(
    seconds_ago, is_up, switch
):
    with switch(), tf.Graph().as_default(), v1.Session() as session:
        up = is_time_up(clock() - seconds_ago, 1.0)
        assert session.run(up) == is_up


def test_pairs_are_split_into_values_by_name_and_updates_in_their_order():
    with fresh_graph():
        pairs = {"b": v1.metrics.mean([1.0, 3.0]), "a": (tf.constant(5.0), tf.no_op(name="up"))}
        values, updates = metric_ops.split(pairs)
    assert list(values) == ["a", "b"]
    assert values["b"] is pairs["b"][0]
    assert updates == [pairs["a"][1], pairs["b"][1]]


def _made(metric_fn, *dtypes):
    with tf.Graph().as_default():
        return IsolatedMetrics(metric_fn, [v1.placeholder(dtype, [4]) for dtype in dtypes])


def test_states_are_taken_up_again():
    metrics = _made(lambda x, w: {"mean": v1.metrics.mean(x, w)}, tf.float32, tf.float64)
    rows = [np.float32([1, 2]), np.float64([1, 3])], [np.float32([5]), np.float64([4])]
    metrics.start(None)
    assert metrics.values() == [0.0]
    metrics.update(rows[0])
    state = metrics.state()
    metrics.start(None)
    metrics.update(rows[1])
    assert metrics.values() == [5.0]
    metrics.start(state)
    metrics.update(rows[1])
    assert metrics.values() == [np.average([1, 2, 5], weights=[1, 3, 4])]


def test_rows_may_be_any_number():
    metrics = _made(lambda x: {"rows": v1.metrics.mean(tf.shape(x)[0])}, tf.float32)
    metrics.start(None)
    for number in (0, 1, 4, 7):
        metrics.update([np.ones(number, np.float32)])
    assert metrics.values() == [3.0]


@pytest.mark.parametrize("dtype", [tf.resource, tf.variant, tf.qint8])
def test_tensors_that_numpy_does_not_know_are_refused(dtype):
    with pytest.raises(NotIsolatedError, match=dtype.name):
        _made(lambda x: {}, dtype)


def test_what_is_no_metric_is_told_in_the_functions_words():
    with pytest.raises(NotIsolatedError, match="TypeError: eval_metric_ops must be a dict"):
        _made(lambda x: x, tf.float32)

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import batches_of, make_template, settings_in
from tests.estimator.tpu import on_cores
from tests.tensorflow_settings import deterministic_ops
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import PreparedEvaluation
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import (
    LoopLength,
    LoopLengthFromTime,
    TunedLoopLength,
)
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.place import Call
from tfx_tpu_trainer.estimator.tpu.cores import emulated
from tfx_tpu_trainer.estimator.tpu.cores.evaluation_and_prediction import (
    CoreEvaluation,
    check_predictions,
)
from tfx_tpu_trainer.estimator.tpu.cores.feed import FiniteFeed
from tfx_tpu_trainer.estimator.tpu.cores.layout import BatchSizes, CoreLayout, InputMode, row_slices
from tfx_tpu_trainer.estimator.tpu.cores.run import core_run_of, loops_of
from tfx_tpu_trainer.estimator.tpu.cores.trace import trace_on_cores

v1 = tf.compat.v1


def _plan(mode: str, batch: int | None = 16, *, number: int | None = 4, axis=None, **options):
    config = on_cores.config_for("m", cores=number, tpu_options=options)
    return core_run_of(mode, config=config, global_batch_size=batch, batch_axis=axis)


@pytest.mark.behaviour(31, 75)
def test_a_run_with_defaults_has_eight_cores_and_per_host_input():
    run = _plan("train", number=None)
    assert (run.cores, run.broadcast, run.input_mode) == (8, False, InputMode.PER_HOST_V1)
    assert run.sizes == BatchSizes(16, 2)


@pytest.mark.parametrize(
    ("mode", "options", "input_mode"),
    [
        ("train", {"per_host_input_for_training": False}, InputMode.PER_SHARD_V1),
        ("eval", {"per_host_input_for_training": False}, InputMode.PER_HOST_V1),
        ("infer", {"per_host_input_for_training": 4}, InputMode.BROADCAST),
        ("train", {"eval_training_input_configuration": 5}, InputMode.PER_HOST_V1),
        ("infer", {"eval_training_input_configuration": 5}, InputMode.SLICED),
    ],
)
@pytest.mark.behaviour(74, 77, 78, 79)
def test_the_input_of_a_mode(mode, options, input_mode):
    assert _plan(mode, **options).input_mode is input_mode


def test_evaluation_and_prediction_read_one_input_whatever_the_hosts():
    assert _plan("train", 32, number=16).layout.num_hosts == 2
    for mode in ("eval", "infer"):
        run = _plan(mode, 32, number=16)
        assert run.layout.num_hosts == 1
        assert run.sizes == BatchSizes(32, 2)
        # One call of input_fn feeds all hosts.
        run = _plan(mode, 33, number=16, per_host_input_for_training=on_cores.BROADCAST)
        assert run.layout.num_hosts == 2
        assert run.sizes == BatchSizes(33, 33)


@pytest.mark.parametrize("mode", on_cores.MODES)
@pytest.mark.behaviour(94)
def test_only_per_host_v2_has_replicas_wider_than_a_host(mode):
    wide = {"num_cores_per_replica": 16}
    v2 = {"per_host_input_for_training": on_cores.PER_HOST_V2}
    for evaluated in ({}, {"eval_training_input_configuration": on_cores.SLICED}):
        assert _plan(mode, **wide, **v2, **evaluated).sizes.model_fn == 4
        with pytest.raises(ValueError, match=r"^Except the PER_HOST_V2 mode, the num"):
            _plan(mode, **wide, **evaluated)


@pytest.mark.behaviour(132)
def test_batch_axis_is_of_per_host_v1_only():
    assert _plan("train", axis=[1, 0]).batch_axis == [1, 0]
    assert _plan("train", axis=[1, 0], per_host_input_for_training=3).batch_axis is None


@pytest.mark.behaviour(149)
def test_model_fn_is_called_once_under_the_number_of_replicas():
    calls = []

    def model_fn(features, labels, added):
        calls.append((features.shape.as_list(), added["batch_size"], added["use_tpu"]))
        total = v1.tpu.cross_replica_sum(tf.reduce_mean(features))
        groups = tf.get_static_value(total.op.inputs[1])
        assert groups.tolist() == [[0, 1, 2, 3]]
        return tpu.TPUEstimatorSpec("train", loss=total, train_op=tf.no_op())

    with fresh_graph():
        call = Call(
            mode="train",
            config=tpu.RunConfig(),
            call_input_fn=lambda added, _=None: (tf.zeros([added["batch_size"], 3]),) * 2,
            call_model_fn=model_fn,
        )
        trace = trace_on_cores(_plan("train"), call)
        assert calls == [([4, 3], 4, True)]
        assert trace.is_padding is None
        assert trace.template.features.shape == [4, 3]
        assert {op.name.split("/")[0] for op in v1.get_default_graph().get_operations()} >= {
            "input_pipeline_task0"
        }


@pytest.mark.parametrize(
    ("iterations", "kind", "longest", "periods"),
    [
        (7, LoopLength, 7, ()),
        ("2m", LoopLengthFromTime, 1 << 32, ()),
        ("auto", TunedLoopLength, 1 << 32, (50, 20, 100)),
    ],
)
def test_loops_are_as_configured(iterations, kind, longest, periods):
    config = tpu.RunConfig(
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=iterations, experimental_host_call_every_n_steps=3
        ),
        save_checkpoints_steps=50,
        save_summary_steps=20,
    )
    loops = loops_of(config, log_every_n_steps=100)
    assert isinstance(loops.length, kind)
    assert (loops.longest, loops.periods, loops.host_call_every_n_steps) == (longest, periods, 3)


def _evaluate(folder, rows: int, *, cores: int, batch: int = 8, steps=None, metric_fn=None):
    values = np.arange(rows)
    with fresh_graph():
        inputs = batches_of(values, batch)
        slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(cores, one_host=True))
        feed = FiniteFeed([inputs], slices, batch_axes=None, batch_size=batch)
        metrics = HostFunction(
            "eval_metrics",
            metric_fn or (lambda x: {"sum": v1.metrics.mean(x)}),
            [feed.features],
        )
        template = make_template("eval", loss=tf.reduce_mean(feed.features), eval_metrics=metrics)
        plan = CoreEvaluation(
            template,
            feed,
            cores=cores,
            broadcast=False,
            steps=steps,
            for_cores=lambda copier: copier,
        ).plan()
        settings = settings_in(folder)
        return PreparedEvaluation(plan, settings=settings, hooks=inputs.hooks).run(None)


@pytest.mark.parametrize(("cores", "rows"), [(1, 9), (2, 7), (8, 1), (8, 24)])
def test_every_row_counts_once(tmp_path, cores, rows):
    result = _evaluate(tmp_path, rows, cores=cores)
    mean = np.mean(np.arange(rows))
    assert result.num_examples == rows
    assert result.metrics["loss"] == pytest.approx(mean, rel=1e-6)
    assert result.metrics["sum"] == pytest.approx(mean, rel=1e-6)
    assert result.loss_by_rows == pytest.approx(mean, rel=1e-6)


def test_it_evaluates_with_deterministic_ops(tmp_path):
    with deterministic_ops():
        assert _evaluate(tmp_path, 9, cores=2).num_examples == 9


def test_no_batch_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="received no batch"):
        _evaluate(tmp_path, 0, cores=2)


def test_metrics_that_are_no_mapping_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"^eval_metric_ops must be a dict, given: "):
        _evaluate(tmp_path, 8, cores=2, metric_fn=lambda x: [x])


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: tf.zeros([4]), TypeError, "predictions must be dict of Tensors"),
        (lambda: {"y": tf.zeros([])}, ValueError, r"key \(y\) .* but is a scalar"),
        (lambda: {"y": v1.placeholder(tf.float32, [None])}, ValueError, "has dynamic shape"),
        (
            lambda: {"a": tf.zeros([4]), "y": tf.zeros([4, 1 << 26])},
            ValueError,
            r"1073741840 bytes, which is too large .*'y': \(4, 67108864\)",
        ),
    ],
)
@pytest.mark.behaviour(231, 232, 233)
def test_predictions_that_cannot_come_from_cores(make, error, says):
    with fresh_graph(), pytest.raises(error, match=says):
        check_predictions(make())


ALL = [[0, 1, 2]]


def _summed_loss(x):
    """Gradients of two variables, 12 and 4 bytes, summed over three cores."""
    variables = [
        v1.get_variable(name, initializer=[1.0] * size) for name, size in (("a", 3), ("b", 1))
    ]
    loss = tf.reduce_sum(tf.square(variables[0] * x + variables[1]))
    gradients = tf.gradients(loss, variables)
    return loss, gradients, [v1.tpu.cross_replica_sum(gradient, ALL) for gradient in gradients]


def _ends(x, nodes, cores: int = 3):
    copier = GraphCopier(v1.get_default_graph())
    return emulated.ends_of_turns(copier, nodes, inputs=[x], cores=cores)


@pytest.mark.parametrize(("most", "in_turns"), [(31, True), (32, False)])
def test_cores_take_turns_if_the_others_gradients_are_too_large(monkeypatch, most, in_turns):
    monkeypatch.setattr(emulated, "_MOST_BYTES_AT_ONCE", most)
    with fresh_graph():
        x = v1.placeholder(tf.float32, [3])
        loss, gradients, sums = _summed_loss(x)
        ends = _ends(x, [loss, *sums])
        assert {end.name for end in ends} == ({g.name for g in gradients} if in_turns else set())


def test_one_core_takes_no_turns(monkeypatch):
    monkeypatch.setattr(emulated, "_MOST_BYTES_AT_ONCE", 0)
    with fresh_graph():
        x = v1.placeholder(tf.float32, [3])
        assert _ends(x, _summed_loss(x)[2], cores=1) == []


def _normalized_over_cores(x):
    return _summed_loss(x - v1.tpu.cross_replica_sum(x, ALL) / 9)[2]


def _after_a_moving_average(x):
    average = v1.get_variable("average", initializer=0.0)
    with tf.control_dependencies([average.assign_add(tf.reduce_sum(x), read_value=False)]):
        return _summed_loss(x)[2]


@pytest.mark.parametrize("make", [_normalized_over_cores, _after_a_moving_average])
def test_cores_that_need_each_other_before_the_end_run_side_by_side(monkeypatch, make):
    monkeypatch.setattr(emulated, "_MOST_BYTES_AT_ONCE", 0)
    with fresh_graph():
        x = v1.placeholder(tf.float32, [3])
        assert _ends(x, make(x)) == []


def test_a_core_reads_its_input_after_the_gradients_of_the_one_before():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [3])
        loss, gradients, sums = _summed_loss(x)
        rows = [tf.constant([1.0, 2.0, core]) for core in range(3)]
        fetches = [Fetch(core, loss) for core in range(3)] + [Fetch(0, each) for each in sums]
        copies = GraphCopier(graph).copy(
            fetches, replaced=[{x.name: row} for row in rows], name="cores", ends_of_turns=gradients
        )
        readers = {row.name: row.consumers() for row in rows}
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            *losses, of_a, of_b = session.run(copies)
    for core, row in enumerate(rows):
        waited_for = {op.name for reader in readers[row.name] for op in upstream([reader])}
        before = {f"cores/core{core - 1}/{gradient.op.name}" for gradient in gradients}
        assert before <= waited_for or core == 0
    # (x + 1)^2 and its gradients, 2 (x + 1) x and 2 (x + 1).
    numbers = [[1.0, 2.0, core] for core in range(3)]
    assert losses == [sum((x + 1) ** 2 for x in row) for row in numbers]
    assert of_a.tolist() == [sum(2 * (x + 1) * x for x in column) for column in zip(*numbers)]
    assert of_b.tolist() == [sum(2 * (x + 1) for row in numbers for x in row)]

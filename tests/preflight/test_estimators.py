"""What a preflight takes of an estimator: batch axes, embeddings, its host call, replicas of several cores."""

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding

from tests.bad_input import row
from tests.estimator.tpu.embedding import embedded
from tests.preflight.lowered import CHECK_ONLY
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import (
    CrossShardOptimizer,
    InputPipelineConfig,
    RunConfig,
    TPUConfig,
    TPUEstimatorSpec,
    experimental,
)
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight import preflight
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs
from tfx_tpu_trainer.preflight._hlo_module import bytes_between_replicas
from tfx_tpu_trainer.preflight._results import Collective
from tfx_tpu_trainer.preflight._step_time import seconds_between_cores

v1 = tf.compat.v1

ROWS, COLUMNS = 64, 32


def _of_estimator(estimator, input_fn, steps=("train",), batch_size=ROWS):
    report = preflight(
        estimator, input_fn, tpu="v5e:2x4", batch_size=batch_size, steps=steps, options=CHECK_ONLY
    )
    assert report.ok, report.summary()
    return report


def test_rows_stand_along_the_batch_axis(tmp_path):
    shapes = []

    def model_fn(features, labels, mode, params):
        shapes.append((features.shape.as_list(), labels.shape.as_list(), params["batch_size"]))
        kernel = v1.get_variable("kernel", [COLUMNS, 1])
        error = tf.matmul(features, kernel, transpose_a=True)[:, 0] - labels
        loss = tf.reduce_mean(tf.square(error))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params):
        rows = params["batch_size"]
        batch = tf.zeros([COLUMNS, rows]), tf.zeros([rows])
        return tf.data.Dataset.from_tensors(batch).repeat()

    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=str(tmp_path)),
        train_batch_size=ROWS,
        batch_axis=[1, 0],
    )
    (train,) = _of_estimator(estimator, input_fn).steps
    assert shapes == [([COLUMNS, ROWS // 8], [ROWS // 8], ROWS // 8)]
    assert train.collective_bytes == 4 * COLUMNS


def test_the_tables_of_embeddings_stand_beside_the_program(tmp_path):
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), experimental.AdagradParameters(0.1))
    estimator = embedded.estimator(tpu, tmp_path, spec, embedded.model_fn_for(tpu), cores=8)
    report = _of_estimator(
        estimator, embedded.input_fn, ["train", "predict"], batch_size=embedded.BATCH
    )
    train, predict = report.steps
    # The output's weights: two embeddings side by side. No table is a variable of the program.
    assert train.parameter_count == predict.parameter_count == 2 * embedded.DIMENSION
    # In addition, the global step, and a number by which the engine taps the gradients.
    assert train.variable_bytes == 4 * 2 * embedded.DIMENSION + 8 + 4
    received = {each.op_name for each in train.largest if each.op_name.startswith("embedded ")}
    assert received == {"embedded 'tag'", "embedded 'word'"}
    # Adagrad keeps a number for each weight of a table.
    tables = 4 * (embedded.WORDS + embedded.TAGS) * embedded.DIMENSION
    messages = {
        step: finding.message
        for finding in report.findings
        for step in report.findings[finding]
        if finding.kind == "embedding"
    }
    assert f"optimizer slots take {2 * tables} bytes: {2 * tables // 8} " in messages["train"]
    assert f"take {tables} bytes" in messages["predict"]


def test_a_host_call_with_summaries(tmp_path):
    def host_call(loss, step):
        raise AssertionError("its body runs on the host, where nothing runs")

    def model_fn(features, labels, mode, params):
        kernel = v1.get_variable("kernel", [COLUMNS, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(features, kernel)[:, 0] - labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        step = v1.train.get_global_step()
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, step),
            host_call=(host_call, [tf.reshape(loss, [1]), tf.reshape(step, [1])]),
        )

    def input_fn(params):
        row = tf.zeros([COLUMNS]), tf.zeros([])
        return tf.data.Dataset.from_tensors(row).repeat().batch(params["batch_size"], True)

    config = tpu.RunConfig(model_dir=str(tmp_path))
    estimator = tpu.TPUEstimator(model_fn, config=config, train_batch_size=ROWS)
    report = _of_estimator(estimator, input_fn)
    (finding,) = [each for each in report.findings if each.kind == "host_op"]
    assert finding.message.startswith("host_call runs on the host: 2 tensors per core")
    assert not any(tmp_path.iterdir())


WIDTH, UNITS = 1024, 4096
KERNEL = 4 * WIDTH * UNITS


def by_variable(kernel: Any, cores: int) -> Any:
    return xla_sharding.split(kernel, 1, cores)


def by_value(kernel: Any, cores: int) -> Any:
    return xla_sharding.split(kernel, 1, cores, use_sharding_op=True)


def split_model(features, labels, mode, params):
    kernel = v1.get_variable("kernel", [WIDTH, params.get("units", UNITS)])
    if params.get("annotate"):
        kernel = params["annotate"](kernel, params["cores"])
    hidden = tf.nn.relu(tf.matmul(features["x"], kernel))
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions={"sum": tf.reduce_sum(hidden, axis=1)})
    optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.001))
    loss = tf.reduce_mean(hidden)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def report_of(*, cores: int | None, tpu: str = "v5e:2x4", step: str = "train", **given: Any) -> Any:
    dims = given.pop("dims", None)
    config = RunConfig(
        tpu_config=TPUConfig(
            num_cores_per_replica=cores,
            per_host_input_for_training=InputPipelineConfig.PER_HOST_V2,
            input_partition_dims=dims,
        )
    )
    return preflight(
        split_model,
        input_fn_of_specs({"x": tf.TensorSpec([WIDTH])}),
        tpu=tpu,
        batch_size=given.pop("batch_size", 64),
        steps=[step],
        config=config,
        params={"cores": cores, **given},
        options=CHECK_ONLY,
    )


def test_a_core_holds_its_part_of_a_sharded_variable_and_of_its_slots():
    report = report_of(cores=4, annotate=by_variable)
    (train,) = report.steps
    assert report.ok, report.summary()
    assert (report.num_replicas, report.num_cores_per_replica, train.batch_size) == (2, 4, 64)
    # The model is as large as it was; a core has a quarter of the kernel and of Adam's two copies.
    assert train.parameter_count == WIDTH * UNITS
    assert train.memory.argument_bytes == pytest.approx(3 * KERNEL / 4, rel=0.02)
    assert {each.shape.partition("{")[0] for each in train.largest[:3]} == {"f32[1024,1024]"}
    # Each core sums its part of the gradient with that of the other replica; the loss's parts are
    # summed over the cores.
    between = {each.between: each for each in train.collectives}
    assert train.collective_bytes == between["replicas"].bytes == KERNEL // 4
    assert (between["cores"].kind, between["cores"].bytes) == ("all-reduce", 4)


def test_slots_of_a_variable_that_is_cut_where_it_is_read_stay_whole():
    report = report_of(cores=4, annotate=by_value)
    (train,) = report.steps
    assert train.memory.argument_bytes == pytest.approx(KERNEL * (2 + 1 / 4), rel=0.02)
    assert "all-gather" in {each.kind for each in train.collectives if each.between == "cores"}


def test_without_annotations_every_core_holds_everything():
    (train,) = report_of(cores=4).steps
    assert train.memory.argument_bytes == pytest.approx(3 * KERNEL, rel=0.02)


def test_input_partition_dims_cut_the_input():
    (cut,) = report_of(cores=8, step="predict", dims=[{"x": [1, 8]}]).steps
    (not_cut,) = report_of(cores=8, step="predict").steps
    saved = not_cut.memory.argument_bytes - cut.memory.argument_bytes
    assert saved == pytest.approx(4 * 64 * WIDTH * 7 / 8, rel=0.05)
    # The kernel is whole on each core, so the compiler has them gather the columns.
    assert [(each.kind, each.between) for each in cut.collectives] == [("all-gather", "cores")]
    assert cut.collectives[0].bytes == 4 * 64 * WIDTH


def test_a_model_too_large_for_a_core_is_refused_by_its_part():
    # A kernel of 16 GiB with two copies: 48 GiB, and 6 GiB on each of eight cores.
    report = report_of(cores=2, annotate=by_variable, units=2**22)
    (train,) = report.steps
    assert train.problem is not None and train.problem.stage == "memory"
    assert train.need_bytes == pytest.approx(24 * 2**30, rel=0.01)
    assert "kernel 8.00 GiB (f32[1024,2097152], argument)" in train.problem.message
    assert report_of(cores=8, annotate=by_variable, units=2**22).ok


@pytest.mark.parametrize(
    ("given", "says", "advice"),
    [
        (
            {"cores": 4, "annotate": by_variable, "units": 4094},
            "Dimension 1 of 'kernel' has the size 4094, which is not divisible by 4 partitions.",
            "Pad it to 4096",
        ),
        (
            {"cores": 2, "annotate": lambda kernel, _: by_value(kernel, 4)},
            "is sharded over 4 cores, but a replica has 2.",
            "Set TPUConfig(num_cores_per_replica=4)",
        ),
    ],
)
def test_what_can_not_be_cut_so_is_named_with_its_line(given, says, advice):
    (train,) = report_of(**given).steps
    assert says in train.problem.message and train.problem.advice.startswith(advice)
    assert "test_estimators.py" in train.problem.source


def test_input_partition_dims_that_do_not_divide_the_input():
    (predict,) = report_of(cores=8, step="predict", batch_size=60, dims=[{"x": [8, 1]}]).steps
    assert predict.problem.message == (
        "Dimension 0 of \"features['x']\" has the size 60, which is not divisible by 8 partitions."
    )


@row(
    "preflight",
    "a slice with fewer devices than a replica has cores",
    "is more than the 1 TPU devices",
)
def test_a_slice_smaller_than_a_replica(refused):
    with refused(ValueError):
        report_of(cores=4, tpu="v5e:1x1")


def _collective(kind, size, between="cores"):
    return Collective(kind=kind, between=between, count=1, bytes=size)


def test_a_sum_made_of_two_ops_counts_once():
    found = [
        _collective("reduce-scatter", 80, "replicas"),
        _collective("all-gather", 80, "replicas"),
        _collective("all-reduce", 7, "cores"),
    ]
    assert bytes_between_replicas(found) == 80


def test_a_bound_on_the_links_between_the_cores_of_a_replica():
    links = 200 * 10**9
    found = [_collective("all-reduce", links), _collective("all-gather", links)]
    assert seconds_between_cores(found, find_slice("v5e:2x4")) == pytest.approx(1.5)
    # The two cores of a chip need none.
    assert seconds_between_cores(found, find_slice("v3:2x2")) == 0

"""Functions and Keras models as steps, with the real compiler."""

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.preflight.lowered import CHECK_ONLY
from tfx_tpu_trainer.preflight import preflight_function

ROWS, COLUMNS, UNITS = 1024, 128, 256
SPEC = tf.TensorSpec([None, COLUMNS])


def report_of(function, signature=(SPEC,), *, tpu="v5e:2x4", batch_size=ROWS, **given):
    report = preflight_function(
        function, signature, tpu=tpu, batch_size=batch_size, options=CHECK_ONLY, **given
    )
    assert report.ok, report.summary()
    (step,) = report.steps
    return report, step


@pytest.fixture
def kernel():
    return tf.Variable(tf.zeros([COLUMNS, UNITS]), name="kernel")


def test_a_function_with_its_variables(kernel):
    calls = tf.Variable(0, trainable=False, name="calls")
    weights = tf.constant(2.0, shape=[UNITS, 512])

    @tf.function
    def step(x):
        calls.assign_add(1)
        return {"y": tf.matmul(tf.matmul(x, kernel), weights)}

    report, function = report_of(step)
    assert (report.model, report.num_replicas) == ("step", 8)
    assert (function.name, function.batch_size) == ("function", ROWS)
    assert function.parameter_count == COLUMNS * UNITS
    assert function.variable_bytes == 4 * (COLUMNS * UNITS + 1)
    rows = ROWS // 8
    assert function.flops == pytest.approx(2 * rows * UNITS * (COLUMNS + 512), rel=0.05)
    assert function.collective_bytes == 0
    named = {each.op_name: each.shape.partition("{")[0] for each in function.largest}
    assert named["kernel"] == "f32[128,256]"
    # An updated variable is not an output: the counter takes its own place.
    assert function.hbm_by_category["results that replace no variable"] >= 4 * rows * 512
    assert calls.numpy() == 0


def test_a_training_step_sums_its_gradients_over_the_replicas(kernel):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel)))
        gradient = tape.gradient(loss, kernel)
        kernel.assign_sub(0.1 * tf.compat.v1.tpu.cross_replica_sum(gradient))
        return loss

    # Traced before there were replicas.
    step.get_concrete_function(tf.TensorSpec([ROWS // 8, COLUMNS]))
    _, function = report_of(step)
    assert function.collective_bytes == 4 * COLUMNS * UNITS
    _, alone = report_of(step, tpu="v5e:1x1")
    assert alone.roofline.collective_seconds == 0


def test_a_signature_of_its_own_or_of_a_saved_model(kernel, tmp_path):
    step = tf.function(lambda x: tf.matmul(x, kernel), input_signature=[SPEC])
    _, own = report_of(step, None)
    module = tf.Module()
    module.kernel, module.step = kernel, step
    tf.saved_model.save(module, str(tmp_path), signatures=step)
    loaded = tf.saved_model.load(str(tmp_path))
    _, saved = report_of(loaded.signatures["serving_default"], None)
    assert own.flops == saved.flops == pytest.approx(2 * ROWS // 8 * COLUMNS * UNITS, rel=0.05)
    assert saved.parameter_count == own.parameter_count == COLUMNS * UNITS


def test_a_result_that_does_not_fit_is_refused():
    # 102,400^2 numbers: the compiler looks at inputs and values in between only, and lets it pass.
    report = preflight_function(
        tf.matmul,
        [tf.TensorSpec([102_400, 1024]), tf.TensorSpec([1024, 102_400])],
        tpu="v5e:1x1",
        options=CHECK_ONLY,
    )
    (step,) = report.steps
    assert step.problem is not None and step.problem.stage == "memory"
    assert step.need_bytes == pytest.approx(4 * (102_400**2 + 2 * 1024 * 102_400), rel=0.01)
    assert "39.06 GiB" in step.problem.message


@pytest.mark.parametrize("package", ["tf_keras", "keras"])
def test_a_training_step_of_a_keras_model(package):
    keras = pytest.importorskip(package)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((COLUMNS,)),
            keras.layers.Dense(UNITS, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    before = model.get_weights()[0].copy()
    report, train = report_of(model, (SPEC, tf.TensorSpec([None, 1])))
    assert (report.model, train.name, train.batch_size) == (model.name, "train", ROWS)
    parameters = COLUMNS * UNITS + UNITS + UNITS + 1
    assert train.parameter_count == parameters
    assert train.variable_bytes >= 3 * 4 * parameters
    # Gradients, and maybe a loss.
    assert 4 * parameters <= train.collective_bytes <= 4 * parameters + 64
    assert (model.get_weights()[0] == before).all()


def _refusal(what, *says, **values):
    return case("preflight", what, *says, values=values)


TWO = (SPEC, tf.TensorSpec([None, None]))


@pytest.mark.parametrize(
    "given",
    [
        _refusal(
            "`preflight_function` of a shape that is open except for the batch",
            "input_signature holds TensorSpec(shape=(None, None), ",
            "a TPU program has static shapes",
            signature=TWO,
        ),
        _refusal(
            "`preflight_function` of an open batch without a batch size",
            "Leave only the first axis open, and give batch_size for it",
            batch_size=None,
        ),
        _refusal(
            "`preflight_function` of no signature",
            "input_signature=None, and 'identity' does not declare one: give a tf.TensorSpec",
            signature=None,
        ),
        _refusal(
            "`preflight_function` of something else than specs",
            "input_signature holds 3: give a tf.TensorSpec for each tensor",
            signature=[3],
        ),
        _refusal(
            "`preflight_function` of a value that is not callable",
            "'identity' can't be called: give a tf.function or a function",
            function="identity",
        ),
        _refusal(
            "`preflight_function` of rows that the replicas do not divide",
            "batch size 63 must be divisible by the 8 replicas",
            batch_size=63,
        ),
    ],
)
def test_what_is_no_step(given, refused):
    def identity(x):
        return x

    with refused((ValueError, TypeError)):
        preflight_function(
            given.get("function", identity),
            given.get("signature", [SPEC]),
            tpu="v5e:2x4",
            batch_size=given.get("batch_size", ROWS),
        )


@row(
    "preflight", "`preflight_function` of a function that looks up a table", "neither a tensor nor"
)
def test_a_function_with_a_table(refused):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    with refused(ValueError):
        preflight_function(table.lookup, [tf.TensorSpec([8], tf.int32)], tpu="v5e:1x1")


@row(
    "preflight",
    "`preflight_function` of a Keras model without labels",
    "for a Keras model, give two",
)
def test_a_keras_model_without_labels(refused):
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(COLUMNS,))])
    model.compile("sgd", "mse")
    with refused(ValueError):
        preflight_function(model, [SPEC], tpu="v5e:2x4", batch_size=ROWS)

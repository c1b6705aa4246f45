"""Tables trained on emulated cores: the numbers of an ordinary embedding on the global batch."""

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.tpu.embedding import embedded
from tests.estimator.tpu.embedding import record_original_embeddings as original_facts
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu.embedding.table_update import SparseAdam

v1 = tf.compat.v1


STEPS = 5


RATE = 0.05


# Parameters of the tables, and the ordinary optimizer that they stand for.
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (
        experimental.StochasticGradientDescentParameters(RATE),
        lambda step: v1.train.GradientDescentOptimizer(RATE),
    ),
    "adagrad": (
        experimental.AdagradParameters(RATE, initial_accumulator=0.2),
        lambda step: v1.train.AdagradOptimizer(RATE, 0.2),
    ),
    "adam": (
        experimental.AdamParameters(RATE, lazy_adam=False, sum_inside_sqrt=False),
        lambda step: v1.train.AdamOptimizer(RATE),
    ),
    "ftrl": (
        experimental.FtrlParameters(
            RATE, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.1
        ),
        lambda step: v1.train.FtrlOptimizer(
            RATE, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.1
        ),
    ),
    "momentum": (
        experimental.MomentumParameters(RATE, 0.9, use_nesterov=True),
        lambda step: v1.train.MomentumOptimizer(RATE, 0.9, use_nesterov=True),
    ),
    "rmsprop": (
        experimental.RMSPropParameters(RATE, 0.8, 0.5, 1e-6),
        lambda step: v1.train.RMSPropOptimizer(RATE, 0.8, momentum=0.5, epsilon=1e-6),
    ),
    "proximal_adagrad": (
        experimental.ProximalAdagradParameters(RATE, l1_regularization_strength=0.01),
        lambda step: v1.train.ProximalAdagradOptimizer(RATE, l1_regularization_strength=0.01),
    ),
}


def _train(folder, parameters, *, cores, columns=None, spec_options=None, steps=STEPS, **options):
    columns = columns or embedded.columns()
    spec = experimental.EmbeddingConfigSpec(columns, parameters, **(spec_options or {}))
    of_model = {key: options.pop(key) for key in ("reduction", "optimizer") if key in options}
    model_fn = embedded.model_fn_for(
        tpu,
        activations=lambda features: v1.feature_column.input_layer(features, columns),
        **of_model,
    )
    estimator = embedded.estimator(tpu, folder, spec, model_fn, cores=cores, **options)
    estimator.train(embedded.input_fn, steps=steps)
    return embedded.variables(estimator)


def _assert_ordinary(trained: dict[str, np.ndarray], ordinary: dict[str, np.ndarray]) -> None:
    """Compares every variable and slot; Adam's powers are no variables of a table here."""
    names = {name for name in ordinary if not name.startswith("beta")}
    assert set(trained) == names | {"global_step"}
    for name in names:
        np.testing.assert_allclose(
            trained[name], ordinary[name], rtol=2e-5, atol=2e-6, err_msg=name
        )


@mostly_swept("name", OPTIMIZERS, kept=["adam"])
@pytest.mark.behaviour(277, 363, 372, 373)
def test_tables_train_as_ordinary_embeddings_slots_included(tmp_path, name, caplog):
    parameters, ordinary = OPTIMIZERS[name]
    trained = _train(tmp_path, parameters, cores=2)
    _assert_ordinary(trained, embedded.plain_training(STEPS, ordinary))
    # The rows of ids are unpacked by ops of ours, which no TPU sees.
    assert "no TPU can run them" not in caplog.text


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "cores"), [("sgd", 1), ("adagrad", 4), ("adam", 8)])
@pytest.mark.behaviour(373)
def test_any_number_of_cores_trains_the_same_tables(tmp_path, name, cores):
    parameters, ordinary = OPTIMIZERS[name]
    trained = _train(tmp_path, parameters, cores=cores)
    _assert_ordinary(trained, embedded.plain_training(STEPS, ordinary))


@pytest.mark.sweep
@pytest.mark.matrix
@pytest.mark.behaviour(372)
def test_gradients_are_summed_where_the_loss_is(tmp_path):
    parameters = experimental.StochasticGradientDescentParameters(0.01)
    trained = _train(tmp_path, parameters, cores=2, reduction=v1.losses.Reduction.SUM)
    ordinary = embedded.plain_training(
        STEPS, lambda step: v1.train.GradientDescentOptimizer(0.01), summed=True
    )
    for table in (embedded.WORD_TABLE, embedded.TAG_TABLE):
        np.testing.assert_allclose(trained[table], ordinary[table], rtol=2e-5, atol=2e-6)


@pytest.mark.sweep
@pytest.mark.matrix
@pytest.mark.behaviour(372)
def test_the_models_own_optimizer_leaves_the_tables_alone(tmp_path):
    seen = []

    def optimizer() -> Any:
        seen.extend(variable.op.name for variable in v1.trainable_variables())
        return v1.train.AdamOptimizer(0.1)

    parameters, _ = OPTIMIZERS["adagrad"]
    trained = _train(tmp_path, parameters, cores=2, optimizer=optimizer)
    assert embedded.WORD_TABLE not in seen
    tables = (embedded.WORD_TABLE, embedded.TAG_TABLE)
    assert set(trained) == {
        "global_step",
        "beta1_power",
        "beta2_power",
        *("out", "out/Adam", "out/Adam_1"),
        *tables,
        *(f"{table}/Adagrad" for table in tables),
    }


@pytest.mark.matrix
@pytest.mark.behaviour(375)
def test_a_multiplier_of_the_step_scales_all_embedding_gradients(tmp_path):
    def halved(step):
        return 0.5 ** tf.cast(step, tf.float32)

    parameters, ordinary = OPTIMIZERS["adagrad"]
    options = {"experimental_gradient_multiplier_fn": halved}
    trained = _train(tmp_path, parameters, cores=2, spec_options=options)
    _assert_ordinary(trained, embedded.plain_training(STEPS, ordinary, multiplier=halved))


@pytest.mark.matrix
@pytest.mark.behaviour(376)
def test_a_columns_learning_rate_fn_wins_over_the_static_rate(tmp_path):
    def rate(step):
        return 0.2 / (1.0 + tf.cast(step, tf.float32))

    parameters = experimental.StochasticGradientDescentParameters(0.0)
    columns = embedded.columns(learning_rate_fn=rate)
    trained = _train(tmp_path, parameters, cores=2, columns=columns)
    ordinary = embedded.plain_training(
        STEPS, lambda step: v1.train.GradientDescentOptimizer(rate(step))
    )
    _assert_ordinary(trained, ordinary)


@pytest.mark.matrix
@mostly_swept("combiner", ["sum", "sqrtn"], kept=["sqrtn"])
@pytest.mark.behaviour(360)
def test_the_combiner_is_the_columns(tmp_path, combiner):
    parameters, ordinary = OPTIMIZERS["sgd"]
    trained = _train(tmp_path, parameters, cores=2, columns=embedded.columns(combiner))
    _assert_ordinary(trained, embedded.plain_training(STEPS, ordinary, combiner=combiner))


@pytest.mark.matrix
@pytest.mark.behaviour(374)
def test_ids_that_occur_once_train_as_on_the_host_slots_included(tmp_path):
    def input_fn(params):
        ids = np.arange(embedded.BATCH).reshape(-1, 1)
        features = {"word": embedded.sparse(ids), "tag": embedded.sparse(ids % embedded.TAGS)}
        dataset = tf.data.Dataset.from_tensor_slices((features, ids.astype(np.float32) / 8))
        return dataset.repeat().batch(params["batch_size"], drop_remainder=True)

    parameters = experimental.AdagradParameters(0.1)
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), parameters)
    model_fn = embedded.model_fn_for(tpu, optimizer=lambda: v1.train.AdagradOptimizer(0.1))
    runs = []
    for cores in (None, 2):
        estimator = embedded.estimator(tpu, tmp_path / str(cores), spec, model_fn, cores=cores)
        estimator.train(input_fn, steps=3)
        runs.append(embedded.variables(estimator))
    host, on_cores = runs
    assert set(host) == set(on_cores)
    for name in host:
        np.testing.assert_allclose(on_cores[name], host[name], rtol=2e-5, atol=1e-6)


@pytest.mark.matrix
def test_clipping_and_decay_act_on_the_rows_of_a_step(tmp_path):
    parameters = experimental.StochasticGradientDescentParameters(
        1.0,
        clip_gradient_min=-0.01,
        clip_gradient_max=0.01,
        weight_decay_factor=0.5,
        clip_weight_min=-0.3,
        clip_weight_max=0.3,
    )
    trained = _train(tmp_path, parameters, cores=2, steps=1)[embedded.WORD_TABLE]
    ordinary = embedded.plain_training(1, lambda step: v1.train.GradientDescentOptimizer(1.0))
    start = embedded.initial(embedded.WORDS)
    used = np.unique(embedded.data()[0][: embedded.BATCH])
    used = used[used >= 0]
    gradient = np.clip((start - ordinary[embedded.WORD_TABLE])[used], -0.01, 0.01)
    expected = start.copy()
    expected[used] = np.clip(0.5 * start[used] - gradient, -0.3, 0.3)
    assert len(used) < embedded.WORDS
    np.testing.assert_allclose(trained, expected, rtol=1e-5, atol=1e-6)


ADAM_RATE, BETA1, BETA2, EPSILON = 0.1, 0.8, 0.9, 1e-3


START = np.cos(np.arange(8)).reshape(4, 2).astype(np.float32)


GRADIENTS = [
    (np.float32([[1, -2], [0.5, 0.25]]), [0, 2]),
    (np.float32([[-1, 3]]), [2]),
    (np.float32([[0.1, 0.2], [2, 2]]), [3, 0]),
]


def _train_by_adam(adam: SparseAdam) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=START, use_resource=True)
        values, rows = v1.placeholder(tf.float32, [None, 2]), v1.placeholder(tf.int32, [None])
        step = v1.placeholder(tf.int64, [])
        gradient = tf.IndexedSlices(values, rows)
        op = adam.apply(table, gradient, rate=tf.constant(ADAM_RATE), step=step)
        session.run(v1.global_variables_initializer())
        for number, (some, of_rows) in enumerate(GRADIENTS):
            session.run(op, {values: some, rows: of_rows, step: number})
        return {variable.op.name: session.run(variable) for variable in v1.global_variables()}


def _by_formula(*, lazy: bool, sum_inside_sqrt: bool) -> dict[str, np.ndarray]:
    table, m, v = START.astype(np.float64), np.zeros((4, 2)), np.zeros((4, 2))
    for number, (values, rows) in enumerate(GRADIENTS, start=1):
        gradient = np.zeros((4, 2))
        gradient[rows] = values
        touched = rows if lazy else slice(None)
        m[touched] = BETA1 * m[touched] + (1 - BETA1) * gradient[touched]
        v[touched] = BETA2 * v[touched] + (1 - BETA2) * gradient[touched] ** 2
        rate = ADAM_RATE * np.sqrt(1 - BETA2**number) / (1 - BETA1**number)
        divisor = np.sqrt(v + EPSILON**2) if sum_inside_sqrt else np.sqrt(v) + EPSILON
        table[touched] -= (rate * m / divisor)[touched]
    return {"table": table, "table/Adam": m, "table/Adam_1": v}


@pytest.mark.parametrize("sum_inside_sqrt", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.behaviour(363)
def test_adam_is_its_formula(lazy, sum_inside_sqrt):
    options = {"lazy": lazy, "sum_inside_sqrt": sum_inside_sqrt}
    got = _train_by_adam(SparseAdam(beta1=BETA1, beta2=BETA2, epsilon=EPSILON, **options))
    expected = _by_formula(**options)
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


# Enough to know a message by; what follows names values, and ours adds the fix.
_PHRASE = 25


@pytest.fixture(scope="module")
def original() -> dict[str, Any]:
    return json.loads(original_facts.RECORDING.read_text(encoding="utf-8"))


@pytest.mark.behaviour(9, 10, 11, *range(352, 357))
def test_errors_are_of_the_same_type_and_phrase(original, tmp_path):
    ours = original_facts.error_facts(tpu, experimental, tmp_path)
    assert set(ours) == set(original["errors"])
    for name, (kind, message) in original["errors"].items():
        assert ours[name][0] == kind, name
        assert ours[name][1][:_PHRASE] == message[:_PHRASE]


def test_the_arguments_and_their_defaults_are_the_originals(original):
    ours = original_facts.signature_facts(experimental)
    for name, arguments in original["signatures"].items():
        assert set(ours[name]) - _OURS == set(arguments), name
        for argument, default in arguments.items():
            assert _value(ours[name][argument]) == _value(default), (name, argument)


# TensorFlow's configuration of SparseCores is younger than the original.
_OURS = {"sparse_core_embedding_config"}


def _value(text: str) -> Any:
    return float(text) if text[:1].isdigit() else text


@pytest.mark.behaviour(379)
def test_a_run_on_the_host_has_the_originals_numbers(original, tmp_path):
    recorded = original["host"]
    ours = original_facts.host_facts(tpu, experimental, tmp_path)
    assert set(ours["variables"]) == set(recorded["variables"])
    for name, value in recorded["variables"].items():
        np.testing.assert_allclose(ours["variables"][name], value, rtol=2e-5, atol=1e-6)
    for name, value in recorded["metrics"].items():
        np.testing.assert_allclose(ours["metrics"][name], value, rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(ours["predictions"], recorded["predictions"], rtol=2e-5, atol=1e-6)

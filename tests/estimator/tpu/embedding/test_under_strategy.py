"""Embeddings under a strategy whose replicas are on this host's devices: the numbers of an ordinary embedding."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator.places.strategy.strategy_runs import mirrored
from tests.estimator.tpu.embedding import embedded, test_training
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

OPTIMIZERS = test_training.OPTIMIZERS
RATE, STEPS = test_training.RATE, test_training.STEPS


@mostly_swept(("name", "replicas"), [("sgd", 1), ("adagrad", 4), ("adam", 2)], kept=[("adam", 2)])
@pytest.mark.behaviour(363, 372, 373)
def test_tables_train_as_ordinary_embeddings_under_a_strategy(tmp_path, name, replicas):
    parameters, ordinary = OPTIMIZERS[name]
    estimator = embedded.under_strategy(tpu, tmp_path, parameters, mirrored(replicas))
    estimator.train(embedded.input_fn, steps=STEPS)
    expected = embedded.plain_training(STEPS, ordinary)
    test_training._assert_ordinary(embedded.variables(estimator), expected)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model trained on emulated cores."""
    folder = tmp_path_factory.mktemp("trained")
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), OPTIMIZERS["adagrad"][0])
    estimator = embedded.estimator(tpu, folder, spec, embedded.model_fn_for(tpu), cores=2)
    estimator.train(embedded.input_fn, steps=2)
    return estimator


@pytest.mark.behaviour(377)
def test_evaluation_and_prediction_read_the_tables_of_emulated_cores(trained):
    """Batches that fill the replicas run there, those that are left over in the session: 5 and 2 rows."""
    input_fn = functools.partial(embedded.finite_input_fn, rows=22)
    parameters, _ = OPTIMIZERS["adagrad"]
    estimator = embedded.under_strategy(tpu, trained.model_dir, parameters, mirrored(2))
    metrics, expected = estimator.evaluate(input_fn), trained.evaluate(input_fn)
    for name in ("error", "mean", "global_step"):
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5)
    outputs = [row["output"] for row in estimator.predict(input_fn)]
    of_emulated = [row["output"] for row in trained.predict(input_fn)]
    np.testing.assert_allclose(outputs, of_emulated, rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
def test_training_goes_on_between_a_strategy_emulated_cores_and_the_host(tmp_path):
    """A checkpoint of one is a checkpoint of the others."""

    def input_fn(params):
        # Always the same rows: a call that restarts the input gets the same ones.
        rows = embedded.input_fn({"batch_size": embedded.BATCH}).take(1).unbatch()
        return rows.batch(params["batch_size"], drop_remainder=True).repeat()

    parameters, _ = OPTIMIZERS["adagrad"]
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), parameters)

    def adagrad():
        return v1.train.AdagradOptimizer(RATE, 0.2)

    model_fn = embedded.model_fn_for(tpu, optimizer=adagrad)

    def of_place(place, folder):
        if place == "strategy":
            return embedded.under_strategy(
                tpu, folder, parameters, mirrored(2), model_fn=model_fn, spec=spec
            )
        cores = {"emulated": 2, "host": None}[place]
        return embedded.estimator(tpu, folder, spec, model_fn, cores=cores)

    for last_step, place in ((2, "host"), (4, "strategy"), (6, "emulated"), (8, "strategy")):
        estimator = of_place(place, tmp_path / "mixed")
        estimator.train(input_fn, max_steps=last_step)
    mixed = embedded.variables(estimator)
    estimator = of_place("host", tmp_path / "host")
    estimator.train(input_fn, max_steps=8)
    expected = embedded.variables(estimator)
    assert set(mixed) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(mixed[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_tensorflows_mid_level_embedding_trains_to_the_same_tables(tmp_path):
    """TPUEmbeddingForServing looks up in tf.Variables, which a tape differentiates: one step of descent."""
    parameters, _ = OPTIMIZERS["sgd"]
    estimator = embedded.under_strategy(tpu, tmp_path, parameters, mirrored(2))
    estimator.train(embedded.input_fn, steps=1)
    api = tf.tpu.experimental.embedding
    tables = {
        embedded.WORD_TABLE: api.TableConfig(embedded.WORDS, embedded.DIMENSION, name="word"),
        embedded.TAG_TABLE: api.TableConfig(embedded.TAGS, embedded.DIMENSION, name="tag"),
    }
    features = {table.name: api.FeatureConfig(table, name=table.name) for table in tables.values()}
    serving = api.TPUEmbeddingForServing(features, optimizer=None)
    words, tags, labels = next(embedded.batches())
    first_values = {
        "word": embedded.initial(embedded.WORDS),
        "tag": embedded.initial(embedded.TAGS, 0.5),
    }
    variables = {config.name: variable for config, variable in serving.embedding_tables.items()}
    for name, variable in variables.items():
        variable.assign(first_values[name])
    weights = np.linspace(-1, 1, 2 * embedded.DIMENSION, dtype=np.float32)[:, np.newaxis]
    with tf.GradientTape() as tape:
        found = serving({"word": embedded.sparse(words), "tag": embedded.sparse(tags)})
        outputs = tf.tanh(tf.concat([found["tag"], found["word"]], axis=1)) @ weights
        loss = tf.reduce_mean(tf.square(outputs - labels))
    gradients = tape.gradient(loss, variables)
    for table, config in tables.items():
        expected = first_values[config.name] - RATE * tf.convert_to_tensor(gradients[config.name])
        np.testing.assert_allclose(
            estimator.get_variable_value(table), expected, rtol=1e-5, atol=1e-6
        )


class OfTwoProcesses(tf.distribute.MirroredStrategy):
    """A strategy that has a second replica, but not here."""

    @property
    def num_replicas_in_sync(self):
        return 2


@row(
    "estimator",
    "`embedding_config_spec` under a strategy over several processes",
    "OfTwoProcesses (2 replicas)",
    "replicas in other processes",
    "use_tpu=False",
)
def test_replicas_in_other_processes_have_no_tables(tmp_path, refused):
    parameters, _ = OPTIMIZERS["sgd"]
    estimator = embedded.under_strategy(tpu, tmp_path, parameters, OfTwoProcesses(["/cpu:0"]))
    with refused(ValueError):
        estimator.train(embedded.input_fn, steps=1)


@row(
    "estimator",
    "`sparse_core_embedding_config=7`",
    "SparseCoreEmbeddingConfig",
)
def test_a_configuration_of_sparse_cores_is_tensorflows(refused):
    with refused(TypeError):
        experimental.EmbeddingConfigSpec(
            embedded.columns(), OPTIMIZERS["sgd"][0], sparse_core_embedding_config=7
        )

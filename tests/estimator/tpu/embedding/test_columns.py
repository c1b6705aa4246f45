"""Kinds of columns on cores against the same columns on the host."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.tpu.embedding import embedded
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental

v1 = tf.compat.v1


pytestmark = pytest.mark.matrix


RATE = embedded.RATE


SGD = experimental.StochasticGradientDescentParameters(RATE)


def _compare(
    folder: Any,
    columns: list[Any],
    activations: Callable[[dict[str, Any]], tf.Tensor],
    input_fn: Callable[..., Any] = embedded.input_fn,
) -> dict[str, np.ndarray]:
    """Trains with gradient descent on the host and on 2 cores; gives the variables of the cores."""
    spec = experimental.EmbeddingConfigSpec(columns, SGD)
    model_fn = embedded.model_fn_for(tpu, activations=activations)
    runs = []
    for cores in (None, 2):
        estimator = embedded.estimator(tpu, folder / str(cores), spec, model_fn, cores=cores)
        estimator.train(input_fn, steps=3)
        runs.append(embedded.variables(estimator))
    host, on_cores = runs
    assert set(on_cores) == set(host)
    for name, value in host.items():
        np.testing.assert_allclose(on_cores[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    return on_cores


def _identity(name: str, size: int) -> Any:
    return tf.feature_column.categorical_column_with_identity(name, size)


@pytest.mark.behaviour(378)
def test_tensor_core_columns_are_variables_of_the_model(tmp_path):
    words, tags = embedded.columns()
    on_core = v1.tpu.experimental.embedding_column(
        _identity("word", embedded.WORDS),
        embedded.DIMENSION,
        initializer=v1.constant_initializer(embedded.initial(embedded.WORDS)),
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 3],
    )
    del words
    spec = experimental.EmbeddingConfigSpec([on_core, tags], SGD)
    assert spec.tensor_core_feature_columns == [on_core] and spec.feature_columns == [tags]
    seen = []

    def activations(features):
        seen.append(set(features))
        return tf.keras.layers.DenseFeatures([on_core, tags])(features)

    trained = _compare(tmp_path, [on_core, tags], activations)
    host, on_cores = seen
    assert on_cores - host == {"word__TENSOR_CORE_MASK"}
    assert {"dense_features/word_embedding/embedding_weights"} <= set(trained)


@pytest.mark.behaviour(378)
def test_a_feature_named_like_the_mask_is_refused(tmp_path):
    def input_fn(params):
        return _words_only(params).map(
            lambda features, labels: ({**features, "word__TENSOR_CORE_MASK": labels}, labels)
        )

    spec = experimental.EmbeddingConfigSpec([_on_tensor_core()], SGD)
    estimator = embedded.estimator(tpu, tmp_path, spec, embedded.model_fn_for(tpu), cores=2)
    with pytest.raises(ValueError, match=r"Mask key word__TENSOR_CORE_MASK .* already in use"):
        estimator.train(input_fn, steps=1)


def _on_tensor_core() -> Any:
    return v1.tpu.experimental.embedding_column(
        _identity("word", embedded.WORDS),
        embedded.DIMENSION,
        initializer=v1.constant_initializer(embedded.initial(embedded.WORDS)),
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 3],
    )


def _words_only(params: dict[str, Any]) -> tf.data.Dataset:
    return embedded.input_fn(params).map(
        lambda features, labels: ({"word": features["word"]}, labels)
    )


FEATURES = {"word": experimental.FeatureConfig("words"), "tag": experimental.FeatureConfig("tags")}


def _tables(**of_words: Any) -> dict[str, experimental.TableConfig]:
    return {
        name: experimental.TableConfig(
            size,
            embedded.DIMENSION,
            initializer=v1.constant_initializer(embedded.initial(size, shift)),
            **options,
        )
        for name, size, shift, options in (
            ("words", embedded.WORDS, 0.0, of_words),
            ("tags", embedded.TAGS, 0.5, {}),
        )
    }


def _train(folder, tables, parameters, *, features=None, activations=None, steps=4):
    spec = experimental.EmbeddingConfigSpec(
        optimization_parameters=parameters,
        feature_to_config_dict=features or FEATURES,
        table_to_config_dict=tables,
    )
    model_fn = embedded.model_fn_for(
        tpu, activations=activations or (lambda f: tf.concat([f["tag"], f["word"]], axis=1))
    )
    estimator = embedded.estimator(tpu, folder, spec, model_fn, cores=2)
    estimator.train(embedded.input_fn, steps=steps)
    return embedded.variables(estimator)


def test_a_table_may_have_an_optimizer_and_a_rate_of_its_own(tmp_path):
    tables = _tables(learning_rate=0.3, optimization_parameters=experimental.AdagradParameters(0.1))
    trained = _train(tmp_path, tables, SGD, steps=1)
    assert set(trained) == {"global_step", "out", "words", "words/Adagrad", "tags"}
    # The first step's gradient is the same whatever the other table's optimizer is.
    adagrad = embedded.plain_training(1, lambda step: v1.train.AdagradOptimizer(0.3))
    np.testing.assert_allclose(trained["words"], adagrad[embedded.WORD_TABLE], rtol=1e-5, atol=1e-6)
    sgd = embedded.plain_training(1, lambda step: v1.train.GradientDescentOptimizer(embedded.RATE))
    np.testing.assert_allclose(trained["tags"], sgd[embedded.TAG_TABLE], rtol=1e-5, atol=1e-6)


def test_training_needs_parameters_for_every_table(tmp_path):
    tables = _tables(optimization_parameters=SGD)
    with pytest.raises(ValueError, match="`optimization_parameters` is missing for table tags"):
        _train(tmp_path, tables, None)


def test_what_cant_be_emulated_is_refused(tmp_path):
    parameters = experimental.FtrlParameters(0.1, multiply_linear_by_learning_rate=True)
    with pytest.raises(ValueError, match="multiply_linear_by_learning_rate=True can't be emulated"):
        _train(tmp_path, _tables(), parameters)


def test_two_features_of_one_table_train_it_together(tmp_path):
    features = {name: experimental.FeatureConfig("words") for name in FEATURES}
    trained = _train(tmp_path, _tables(), SGD, features=features)
    # A table that no feature looks up in is there, and stands still.
    np.testing.assert_array_equal(trained["tags"], embedded.initial(embedded.TAGS, 0.5))
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("words", initializer=embedded.initial(embedded.WORDS))
        words, tags = (v1.sparse_placeholder(tf.int64, [embedded.BATCH, None]) for _ in range(2))
        labels = v1.placeholder(tf.float32, [embedded.BATCH, 1])
        parts = [tf.nn.safe_embedding_lookup_sparse(table, ids) for ids in (tags, words)]
        loss = tf.reduce_mean(tf.square(embedded.output(tf.concat(parts, axis=1)) - labels))
        train_op = v1.train.GradientDescentOptimizer(embedded.RATE).minimize(loss)
        session.run(v1.global_variables_initializer())
        for _, batch in zip(range(4), embedded.batches()):
            some_words, some_tags, some_labels = batch
            session.run(
                train_op,
                {
                    words: embedded.sparse_value(some_words),
                    tags: embedded.sparse_value(some_tags),
                    labels: some_labels,
                },
            )
        expected = session.run(table)
    np.testing.assert_allclose(trained["words"], expected, rtol=2e-5, atol=1e-6)


def test_an_activation_that_is_not_used_gets_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        trained = _train(tmp_path, _tables(), SGD, activations=lambda features: features["word"])
    assert "embeddings of ['tag'] have undefined gradients" in caplog.text
    np.testing.assert_array_equal(trained["tags"], embedded.initial(embedded.TAGS, 0.5))

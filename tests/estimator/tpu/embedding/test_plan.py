"""What columns and dicts say of tables and features, at use on cores."""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf
from tensorflow.python.tpu import feature_column as deprecated_columns

from tests.estimator.tpu.embedding import embedded
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu.embedding.plan import plan_embeddings

v1 = tf.compat.v1

PARAMETERS = experimental.AdagradParameters(0.1)


def _identity(name: str = "word"):
    return tf.feature_column.categorical_column_with_identity(name, 10)


def _plan(columns):
    return plan_embeddings(experimental.EmbeddingConfigSpec(columns, PARAMETERS))


@pytest.mark.behaviour(357)
def test_ordinary_columns_are_refused_on_cores(tmp_path):
    columns = [tf.feature_column.embedding_column(_identity(), 4)]
    spec = experimental.EmbeddingConfigSpec(columns, PARAMETERS)
    estimator = embedded.estimator(tpu, tmp_path, spec, embedded.model_fn_for(tpu), cores=2)
    for call in (
        lambda: estimator.train(embedded.input_fn, steps=1),
        lambda: estimator.evaluate(embedded.finite_input_fn),
        lambda: next(estimator.predict(embedded.finite_input_fn)),
    ):
        with pytest.raises(
            TypeError, match=r"Unsupported feature column <class .*EmbeddingColumn'>\. Supp"
        ):
            call()


@pytest.mark.behaviour(357)
def test_the_deprecated_kind_gets_a_warning(caplog):
    column = deprecated_columns.embedding_column(_identity(), 4)
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        assert list(_plan([column]).features) == ["word"]
    assert "_TPUEmbeddingColumn are deprecated" in caplog.text


@pytest.mark.behaviour(358)
def test_a_feature_is_embedded_once():
    one, other = (v1.tpu.experimental.embedding_column(_identity(), size) for size in (4, 5))
    with pytest.raises(ValueError, match="Feature column word is used with multiple embeddings"):
        _plan([one, other])
    shared = v1.tpu.experimental.shared_embedding_columns([_identity(), _identity("b")], 4)
    with pytest.raises(ValueError, match="Feature column word is used with multiple embeddings"):
        _plan([one, *shared])


@pytest.mark.behaviour(360)
def test_tables_and_features_are_the_columns():
    weighted = tf.feature_column.weighted_categorical_column(_identity("tag"), "weight")
    sequence = tf.feature_column.sequence_categorical_column_with_identity("title", 10)
    initializer = v1.zeros_initializer()
    columns = [
        v1.tpu.experimental.embedding_column(
            _identity(), 4, combiner="sum", initializer=initializer, learning_rate_fn=float
        ),
        v1.tpu.experimental.embedding_column(weighted, 3),
        *v1.tpu.experimental.shared_embedding_columns(
            [sequence, _identity("body")], 5, max_sequence_lengths=[7, 0]
        ),
    ]
    plan = _plan(columns)
    assert set(plan.tables) == {
        "tbl_word",
        "tbl_tag_weighted_by_weight",
        "tbl_body_title_shared_embedding",
    }
    word = plan.tables["tbl_word"]
    assert (word.vocabulary_size, word.dimension, word.combiner) == (10, 4, "sum")
    assert word.initializer is initializer and word.learning_rate_fn is float
    shared = "tbl_body_title_shared_embedding"
    assert plan.tables[shared].dimension == 5
    assert dict(plan.features) == {
        "word": experimental.FeatureConfig("tbl_word"),
        "tag": experimental.FeatureConfig("tbl_tag_weighted_by_weight", 0, "weight"),
        "title": experimental.FeatureConfig(shared, 7),
        "body": experimental.FeatureConfig(shared),
    }


@pytest.mark.behaviour(362)
def test_columns_that_the_model_does_not_use_are_an_error(tmp_path):
    words, _ = columns = embedded.columns()
    spec = experimental.EmbeddingConfigSpec(columns, PARAMETERS)
    model_fn = embedded.model_fn_for(
        tpu, activations=lambda features: v1.feature_column.input_layer(features, [words])
    )
    estimator = embedded.estimator(tpu, tmp_path, spec, model_fn, cores=2)
    with pytest.raises(RuntimeError, match=r"did not capture any thing.*\['tag'\] are not"):
        estimator.train(embedded.input_fn, steps=1)


def test_a_clipping_limit_is_said_to_have_no_effect(caplog):
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), PARAMETERS, clipping_limit=0.5)
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        plan_embeddings(spec)
    assert "clipping_limit=0.5 has no effect" in caplog.text

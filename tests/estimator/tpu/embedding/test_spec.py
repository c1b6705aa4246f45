"""EmbeddingConfigSpec, its configurations and parameters are checked when made; what they stand for on cores."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import feature_column as deprecated_columns
from tensorflow.python.tpu import tpu_embedding_v3_utils

from tests.estimator._engine import fake_tpu
from tests.estimator.tpu.embedding import embedded
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.spec import plan_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.tpu_tables import StackLayout

v1 = tf.compat.v1


PARAMETERS = experimental.AdagradParameters(0.1)
TABLES = {"words": experimental.TableConfig(10, 4)}
FEATURES = {"word": experimental.FeatureConfig("words")}


def _identity(name: str = "word"):
    return tf.feature_column.categorical_column_with_identity(name, 10)


def _tpu_column(name: str = "word", **options):
    return v1.tpu.experimental.embedding_column(_identity(name), 4, **options)


@pytest.mark.behaviour(355)
def test_with_dicts_the_parameters_are_not_checked():
    spec = experimental.EmbeddingConfigSpec(
        feature_to_config_dict=FEATURES, table_to_config_dict=TABLES
    )
    assert spec.optimization_parameters is None


def test_the_arguments_are_the_originals_and_the_public_place_too():
    spec = experimental.EmbeddingConfigSpec(
        feature_columns=[_tpu_column()],
        optimization_parameters=PARAMETERS,
        clipping_limit=1.0,
        pipeline_execution_with_tensor_core=True,
        experimental_gradient_multiplier_fn=float,
        feature_to_config_dict=None,
        table_to_config_dict=None,
        partition_strategy="div",
        profile_data_directory="folder",
    )
    assert spec._fields == (
        "feature_columns",
        "tensor_core_feature_columns",
        "optimization_parameters",
        "clipping_limit",
        "pipeline_execution_with_tensor_core",
        "experimental_gradient_multiplier_fn",
        "feature_to_config_dict",
        "table_to_config_dict",
        "partition_strategy",
        "profile_data_directory",
        "sparse_core_embedding_config",  # Ours.
    )
    assert spec.optimization_parameters is PARAMETERS and spec.profile_data_directory == "folder"
    assert tpu.EmbeddingConfigSpec is experimental.EmbeddingConfigSpec


def _estimator(folder, tpu_config, *, spec=None, **options):
    spec = spec or experimental.EmbeddingConfigSpec(embedded.columns(), PARAMETERS)
    config = tpu.RunConfig(model_dir=str(folder), master="emulated", tpu_config=tpu_config)
    return tpu.TPUEstimator(
        embedded.model_fn_for(tpu),
        config=config,
        embedding_config_spec=spec,
        **{"train_batch_size": 8, **options},
    )


def test_a_spec_of_another_class_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"must be an EmbeddingConfigSpec.*got 'word'"):
        _estimator(tmp_path, tpu.TPUConfig(), spec="word")


@pytest.mark.behaviour(359)
def test_sequence_columns_need_a_length_and_others_must_not_have_one():
    sequence = tf.feature_column.sequence_categorical_column_with_identity("word", 10)
    column, shared = (
        v1.tpu.experimental.embedding_column,
        v1.tpu.experimental.shared_embedding_columns,
    )
    with pytest.raises(ValueError, match="max_sequence_length must be greater than 0"):
        column(sequence, 4)
    with pytest.raises(ValueError, match="Non zero max_seq_length=2 specified for non sequence"):
        column(_identity(), 4, max_sequence_length=2)
    with pytest.raises(ValueError, match="must be of the same length"):
        shared([sequence, _identity("b")], 4, max_sequence_lengths=[2])
    with pytest.raises(ValueError, match="Non zero max_seq_length=2 specified for non sequence"):
        shared([sequence, _identity("b")], 4, max_sequence_lengths=[2, 2])
    with pytest.raises(ValueError, match="max_sequence_length must be greater than 0"):
        shared([sequence, _identity("b")], 4, max_sequence_lengths=[0, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 0}, "vocabulary_size must be a positive int, got: 0"),
        ({"dimension": 1.5}, "dimension must be a positive int, got: 1.5"),
        ({"initializer": 0.0}, "initializer must be callable if specified, got: 0.0"),
        ({"combiner": "max"}, "combiner must be .* got: 'max'"),
        ({"learning_rate": 0.1, "learning_rate_fn": float}, "At most one of learning_rate"),
        ({"optimization_parameters": "sgd"}, "optimization_parameters must be one of"),
    ],
)
@pytest.mark.behaviour(356)
def test_a_table_config_checks_its_values(options, message):
    with pytest.raises(ValueError, match=message):
        experimental.TableConfig(**{"vocabulary_size": 10, "dimension": 4, **options})


def test_a_table_starts_from_a_truncated_normal_by_default():
    initializer = experimental.TableConfig(10, 16).initializer
    with tf.Graph().as_default(), v1.Session() as session:
        values = session.run(initializer([1000, 16]))
    assert abs(values).max() <= 2 / 4
    assert values.std() == pytest.approx(0.88 / 4, rel=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experimental.AdagradParameters(0.1, 0.0), "initial_accumulator must be greater"),
        (lambda: experimental.AdamParameters(0.1, beta1=1.0), "beta1 must be between 0. and 1"),
        (lambda: experimental.AdamParameters(0.1, epsilon=0.0), "epsilon must be positive"),
        (
            lambda: experimental.AdamParameters(
                0.1, lazy_adam=False, use_gradient_accumulation=False
            ),
            "When disabling Lazy Adam",
        ),
        (lambda: experimental.FtrlParameters(0.1, 0.5), "learning_rate_power must be less than"),
        (
            lambda: experimental.FtrlParameters(0.1, l1_regularization_strength=-1.0),
            "l1_regularization_strength must be greater than or equal to 0, got: -1.0",
        ),
        (
            lambda: experimental.ProximalAdagradParameters(0.1, l2_regularization_strength=-1.0),
            "l2_regularization_strength must be greater than or equal to 0, got: -1.0",
        ),
        (
            lambda: experimental.StochasticGradientDescentParameters(
                0.1, use_gradient_accumulation=False, clip_gradient_min=-1.0
            ),
            "gradient accumulation must be enabled",
        ),
    ],
)
def test_parameters_check_their_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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


def test_a_clipping_limit_is_said_to_have_no_effect(caplog):
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), PARAMETERS, clipping_limit=0.5)
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        plan_embeddings(spec)
    assert "clipping_limit=0.5 has no effect" in caplog.text


_embedding = tf.tpu.experimental.embedding

# Later versions ask for parts of a table, and not for those that a device has.
ASKS_FOR_WHOLE_TABLES = not hasattr(_embedding, "SparseCoreEmbeddingConfig")
REPLICAS, CORES = 2, 4
# Name -> rows and width: two stacks, one of which has two tables.
PADDED_TABLES = {"word": (150, 5), "tag": (70, 5), "user": (64, 16)}
VALUES = {
    name: np.random.RandomState(seed).randn(*shape).astype(np.float32)
    for seed, (name, shape) in enumerate(PADDED_TABLES.items())
}


@pytest.fixture(scope="module")
def embedding():
    """TensorFlow's own, which takes each table's first value apart itself."""
    optimizer = _embedding.Adagrad(0.1)

    def padded(name):
        def initializer(shape, dtype):
            rows, dim = PADDED_TABLES[name]
            if not ASKS_FOR_WHOLE_TABLES:
                return tf.zeros(shape, dtype)
            return tf.pad(VALUES[name], [[0, shape[0] - rows], [0, shape[1] - dim]])

        return initializer

    features = {
        name: _embedding.FeatureConfig(
            _embedding.TableConfig(
                rows, dim, initializer=padded(name), optimizer=optimizer, name=name
            ),
            output_shape=[8],
            name=name,
        )
        for name, (rows, dim) in PADDED_TABLES.items()
    }
    strategy = fake_tpu.strategy_of(REPLICAS, feature=fake_tpu.Feature.V2, sparse_cores=CORES)
    with strategy.scope():
        made = _embedding.TPUEmbeddingV2(features)
        made.build()
    return made


def layouts(embedding) -> dict[str, StackLayout]:
    return {
        stack: StackLayout(places, PADDED_TABLES, REPLICAS * CORES)
        for stack, places in tf_private.stacks(embedding).items()
    }


@pytest.mark.skipif(not ASKS_FOR_WHOLE_TABLES, reason="TensorFlow packs no whole tables")
def test_tables_are_packed_as_tensorflow_packs_them(embedding):
    found = layouts(embedding)
    assert sorted(map(len, (layout.places for layout in found.values()))) == [1, 2]
    for stack, layout in found.items():
        own = embedding.variables[stack]["parameters"].values
        packed = layout.pack({name: VALUES[name] for name in layout.places}, devices=REPLICAS)
        for variable, part in zip(own, packed, strict=True):
            np.testing.assert_array_equal(part, variable.numpy())
        for name in layout.places:
            np.testing.assert_array_equal(layout.unpack(packed, name), VALUES[name])


def test_tables_are_unpacked_as_tensorflow_unpacks_a_checkpoint(embedding):
    for layout in layouts(embedding).values():
        packed = layout.pack({name: VALUES[name] for name in layout.places}, devices=REPLICAS)
        parts = np.random.RandomState(9).randn(layout.rows, layout.padded_dim).astype(np.float32)
        for name, place in layout.places.items():
            whole = tpu_embedding_v3_utils.unshuffle_from_sc_to_cpu(
                tf.constant(parts),
                num_sparse_cores=layout.cores,
                offset_in_shard=place.offset // layout.cores,
                size_in_shard=place.padded_rows // layout.cores,
                shard_rotation=place.rotation,
            )
            np.testing.assert_array_equal(
                layout.unpack(np.split(parts, REPLICAS), name),
                whole[: PADDED_TABLES[name][0], : PADDED_TABLES[name][1]],
            )
            np.testing.assert_array_equal(layout.unpack(packed, name), VALUES[name])

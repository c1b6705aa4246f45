"""Ids and weights on their way to the cores: what is taken, cut, refused."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.tpu.embedding import embedded
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu.embedding.id_features import IdFeatures
from tfx_tpu_trainer.estimator.tpu.embedding.spec import plan_embeddings

v1 = tf.compat.v1

TABLE = np.float32([[0, 0], [1, 10], [2, 20], [3, 30], [4, 40], [5, 50]])


class _Lookup:
    """Evaluates a model on 2 cores that hands its features on, and keeps what it saw."""

    def __init__(self, folder, *, weight_key=None, combiner="mean", max_length=0, **options):
        table = experimental.TableConfig(
            *TABLE.shape, initializer=v1.constant_initializer(TABLE), combiner=combiner
        )
        feature = experimental.FeatureConfig("table", max_length, weight_key)
        spec = experimental.EmbeddingConfigSpec(
            feature_to_config_dict={"id": feature}, table_to_config_dict={"table": table}
        )
        self.features: dict[str, Any] = {}
        self._estimator = embedded.estimator(
            tpu, folder, spec, self._model_fn, cores=2, predict_batch_size=4, **options
        )

    def __call__(self, features: dict[str, Any], *, batched: bool = True) -> dict[str, np.ndarray]:
        def input_fn(params):
            made = {key: value() if callable(value) else value for key, value in features.items()}
            dataset = tf.data.Dataset.from_tensor_slices(made)
            return dataset.batch(params["batch_size"]) if batched else dataset

        rows = list(self._estimator.predict(input_fn))
        return {key: np.array([row[key] for row in rows]) for key in rows[0]}

    def _model_fn(self, features, labels, mode, params):
        self.features = dict(features)
        return tpu.TPUEstimatorSpec(mode, predictions=dict(features))


def _sparse(rows: list[list[Any]], dtype: Any = np.int64, *, shape=None):
    """A sparse tensor of the values that are not None; made in the graph that asks."""

    def make():
        places = [(i, j) for i, row in enumerate(rows) for j, v in enumerate(row) if v is not None]
        values = np.array([rows[i][j] for i, j in places], dtype)
        width = max(map(len, rows))
        return tf.SparseTensor(np.array(places), values, shape or (len(rows), width))

    return make


@pytest.mark.behaviour(361)
def test_the_model_sees_activations_in_the_place_of_ids(tmp_path):
    lookup = _Lookup(tmp_path, weight_key="weight")
    got = lookup(
        {
            "id": _sparse([[1, 3], [2], [], [5, 5, 2], [4]]),
            "weight": _sparse([[1, 3], [2], [], [1, 1, 1], [7]], np.float32),
            "x": np.arange(5.0, dtype=np.float32),
        }
    )
    assert set(lookup.features) == {"id", "x"}
    assert lookup.features["id"].shape.as_list() == [2, 2]
    np.testing.assert_array_equal(got["x"], np.arange(5))
    expected = np.float32([[2.5, 25], [2, 20], [0, 0], [4, 40], [4, 40]])
    np.testing.assert_allclose(got["id"], expected, rtol=1e-6)


@pytest.mark.behaviour(361, 370)
def test_sequences_have_their_lengths_beside_them(tmp_path):
    lookup = _Lookup(tmp_path, max_length=3)
    got = lookup({"id": _sparse([[1, None, 3], [2], [], [5, 5, 2, 4]])})
    assert set(got) == {"id", "id_seq_length_"}
    np.testing.assert_array_equal(got["id_seq_length_"], [3, 1, 0, 3])
    zero = [0, 0]
    one, two, three, five = TABLE[[1, 2, 3, 5]].tolist()
    expected = [[one, zero, three], [two, zero, zero], [zero] * 3, [five, five, two]]
    np.testing.assert_array_equal(got["id"], expected)


@pytest.mark.behaviour(371)
def test_ids_at_one_position_are_combined(tmp_path):
    def ids():
        indices = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 1, 1]]
        return tf.SparseTensor(indices, np.int64([1, 3, 2, 4]), [2, 2, 2])

    got = _Lookup(tmp_path, max_length=2)({"id": ids})
    np.testing.assert_array_equal(got["id"], [[[2, 20], [2, 20]], [[0, 0], [4, 40]]])
    np.testing.assert_array_equal(got["id_seq_length_"], [2, 2])


@mostly_swept("dtype", [np.int32, np.int64], kept=[np.int32])
@pytest.mark.behaviour(365)
def test_a_dense_zero_is_a_missing_id(tmp_path, dtype):
    got = _Lookup(tmp_path)({"id": np.array([[1, 0, 3], [0, 0, 0], [5, 5, 0]], dtype)})
    np.testing.assert_allclose(got["id"], [[2, 20], [0, 0], [5, 50]])
    got = _Lookup(tmp_path)({"id": np.array([1, 0, 3], dtype)})
    np.testing.assert_allclose(got["id"], TABLE[[1, 0, 3]])


@mostly_swept("shape", [[4], [4, 1]], kept=[[4, 1]])
@pytest.mark.behaviour(365)
def test_without_a_combiner_zero_is_an_id(tmp_path, shape):
    shifted = np.array([0, 1, 0, 5]).reshape(shape)
    got = _Lookup(tmp_path, combiner=None)({"id": shifted})
    np.testing.assert_array_equal(got["id"], TABLE[[0, 1, 0, 5]])


def test_ragged_ids_are_taken_too(tmp_path):
    got = _Lookup(tmp_path)({"id": lambda: tf.ragged.constant([[1, 3], [], [2]], tf.int64)})
    np.testing.assert_allclose(got["id"], [[2, 20], [0, 0], [2, 20]])


@pytest.mark.behaviour(366)
def test_string_ids_are_refused_with_advice(tmp_path):
    for ids in (np.array([b"a", b"b"]), _sparse([["a"], ["b"]], object)):
        with pytest.raises(
            ValueError, match=r"string as values are not supported.*in your input_fn"
        ):
            _Lookup(tmp_path)({"id": ids})


@pytest.mark.behaviour(367)
def test_integer_weights_are_cast(tmp_path):
    got = _Lookup(tmp_path, weight_key="weight")(
        {"id": _sparse([[1, 3], [2]]), "weight": _sparse([[1, 3], [2]], np.int32)}
    )
    np.testing.assert_allclose(got["id"], [[2.5, 25], [2, 20]])


@mostly_swept(("combiner", "expected"), [("sum", 10), ("mean", 2.5)], kept=[("mean", 2.5)])
@pytest.mark.behaviour(369)
def test_the_weighted_mean_is_over_the_total_weight(tmp_path, combiner, expected):
    got = _Lookup(tmp_path, weight_key="weight", combiner=combiner)(
        {"id": _sparse([[1, 3], [1]]), "weight": _sparse([[1, 3], [1]], np.float32)}
    )
    np.testing.assert_allclose(got["id"][0], [expected, 10 * expected])


@pytest.mark.behaviour(367)
def test_weights_must_be_there_and_sparse(tmp_path):
    ids = _sparse([[1, 3], [2]])
    lookup = _Lookup(tmp_path, weight_key="weight")
    with pytest.raises(ValueError, match="Cannot find weights weight for weighted_categorical"):
        lookup({"id": ids})
    with pytest.raises(ValueError, match=r"weight has dense weights\. Dense weights are not"):
        lookup({"id": ids, "weight": np.ones((2, 2), np.float32)})


@pytest.mark.behaviour(367)
def test_weights_are_not_shared():
    features = {
        name: experimental.FeatureConfig("table", weight_key="weight") for name in ("a", "b")
    }
    ones = np.ones((1, 1), np.int64)
    values = {"a": ones, "b": ones, "weight": ones.astype(np.float32)}
    with pytest.raises(ValueError, match=r"weight-sharing .* not supported"):
        _prepare(features, values)


@pytest.mark.behaviour(368)
def test_weights_of_dense_ids_are_refused(tmp_path):
    weights = _sparse([[1], [1]], np.float32)
    for combiner in (None, "mean"):
        lookup = _Lookup(tmp_path, combiner=combiner, weight_key="weight")
        with pytest.raises(
            ValueError, match=r"Found weights weight .* not compatible with feature"
        ):
            lookup({"id": np.array([1, 2]), "weight": weights})


def test_sparse_ids_need_a_combiner(tmp_path):
    with pytest.raises(ValueError, match="id is sparse, but its table has the combiner None"):
        _Lookup(tmp_path, combiner=None)({"id": _sparse([[1], [2]])})
    with pytest.raises(ValueError, match="id is a sequence, but its table has the combiner None"):
        _Lookup(tmp_path, combiner=None, max_length=2)({"id": np.array([1, 2])})
    with pytest.raises(ValueError, match=r"shape \(None, 2\) must have one id per row"):
        _Lookup(tmp_path, combiner=None)({"id": np.array([[1, 2], [3, 4]])})


def test_a_missing_id_feature_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"lack 'id'.*they are \['x'\]"):
        _Lookup(tmp_path)({"x": np.ones(4, np.float32)})


def test_features_must_be_a_dict():
    with pytest.raises(ValueError, match="the features must be a dict"):
        _prepare({"id": experimental.FeatureConfig("table")}, tf.zeros([2]))


def test_sparse_features_that_are_not_embedded_stay_refused(tmp_path):
    ids = _sparse([[1], [2]])
    with pytest.raises(ValueError, match="SparseTensor inputs can't be passed to TPU cores"):
        _Lookup(tmp_path)({"id": ids, "other": ids})


@mostly_swept("mode", ["PER_HOST_V1", "PER_HOST_V2"], kept=["PER_HOST_V2"])
@pytest.mark.behaviour(364)
def test_both_per_host_inputs_train_on_sparse_and_dense_ids(tmp_path, mode):
    input_mode = getattr(tpu.InputPipelineConfig, mode)
    sparse = _train(tmp_path / "sparse", _without_zeros, input_mode=input_mode)
    dense = _train(tmp_path / "dense", _dense, input_mode=input_mode)
    for name, value in sparse.items():
        np.testing.assert_allclose(dense[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def _train(folder, change, *, then=lambda dataset: dataset, **options) -> dict[str, np.ndarray]:
    """Trains on 2 cores on the features of `embedded`, changed."""
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), experimental.AdagradParameters(0.1))
    estimator = embedded.estimator(
        tpu, folder, spec, embedded.model_fn_for(tpu), cores=2, **options
    )

    def input_fn(params):
        dataset = embedded.input_fn(params)
        return then(dataset.map(lambda features, labels: (change(features), labels)))

    estimator.train(input_fn, steps=3)
    return embedded.variables(estimator)


def _without_zeros(features):
    return {key: tf.sparse.retain(ids, ids.values > 0) for key, ids in features.items()}


def _dense(features):
    return {key: tf.sparse.to_dense(ids) for key, ids in features.items()}


def _prepare(features: dict[str, experimental.FeatureConfig], values: Any) -> Any:
    """Prepares sparse features of a batch, given as the arrays that they are made of."""
    spec = experimental.EmbeddingConfigSpec(
        feature_to_config_dict=features,
        table_to_config_dict={"table": experimental.TableConfig(*TABLE.shape)},
    )
    with tf.Graph().as_default():
        made = tf.nest.map_structure(
            lambda value: tf.sparse.from_dense(value) if isinstance(value, np.ndarray) else value,
            values,
        )
        return IdFeatures(plan_embeddings(spec), padded=False).prepare_input(made)

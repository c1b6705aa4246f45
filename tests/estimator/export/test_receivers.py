import types

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, export
from tfx_tpu_trainer.estimator.extending import host_signatures_of

v1 = tf.compat.v1


class Labeled:
    """Stands for a tensor, as TensorFlow 1's LabeledTensor did."""

    def __init__(self, tensor):
        self.tensor = tensor


tf.register_tensor_conversion_function(Labeled, lambda value, *_, **__: value.tensor)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


class TestServingInputReceiver:
    @pytest.mark.behaviour(439)
    def test_lone_tensors_are_wrapped(self):
        feature, fed, other = tf.constant([0]), tf.constant([1]), tf.constant([2])
        receiver = export.ServingInputReceiver(feature, fed, {"other": other})
        assert receiver.features == {"feature": feature}
        assert receiver.receiver_tensors == {"input": fed}
        assert receiver.receiver_tensors_alternatives == {"other": {"input": other}}

    def test_unpacks_like_the_originals(self):
        tensor = tf.constant([0])
        features, receiver_tensors, alternatives = export.ServingInputReceiver(tensor, tensor)
        assert features == {"feature": tensor}
        assert receiver_tensors == {"input": tensor}
        assert alternatives is None

    @pytest.mark.behaviour(439)
    def test_takes_dense_sparse_and_ragged_tensors_with_str_and_int_keys(self):
        features = {
            "dense": tf.constant([0]),
            1: tf.SparseTensor([[0, 0]], [1], [1, 1]),
            2: tf.ragged.constant([[1], [2, 3]]),
        }
        receiver = export.ServingInputReceiver(features, tf.constant([0]))
        assert receiver.features == features

    def test_host_signatures_are_no_field_of_the_tuple(self):
        tensor = tf.constant([0])
        signature = export.HostSignature(inputs={"a": tensor}, outputs={"b": tensor})
        receiver = export.ServingInputReceiver(tensor, tensor, host_signatures={"s": signature})
        assert host_signatures_of(receiver) == {"s": signature}
        assert len(receiver) == 3
        assert host_signatures_of(export.ServingInputReceiver(tensor, tensor)) == {}
        receiver = export.ServingInputReceiver(
            tensor, tensor, host_signatures=lambda: {"s": signature}
        )
        assert host_signatures_of(receiver) == {"s": signature}

    @pytest.mark.parametrize(
        "features",
        [
            case(
                "exports",
                f"a ServingInputReceiver of the features `{features}`",
                *says,
                values=(features,),
            )
            for features, *says in (
                (None, "features must be defined"),
                ({1.5: "tensor"}, "feature keys must be strings or ints: 1.5"),
                ({"a": [1]}, "feature a must be a Tensor, SparseTensor, or RaggedTensor, got [1]"),
            )
        ],
    )
    @pytest.mark.behaviour(439)
    def test_features_that_are_none(self, features, refused):
        with refused(ValueError):
            export.ServingInputReceiver(features, tf.constant([0]))

    @pytest.mark.parametrize(
        "receiver_tensors",
        [
            case("exports", f"a ServingInputReceiver fed by `{tensors}`", *says, values=(tensors,))
            for tensors, *says in (
                (None, "receiver_tensors must be defined"),
                ({1: "tensor"}, "receiver_tensor keys must be strings: 1"),
                ({"a": [1]}, "receiver_tensor a must be a Tensor"),
            )
        ],
    )
    @pytest.mark.behaviour(439)
    def test_receiver_tensors_that_are_none(self, receiver_tensors, refused):
        with refused(ValueError):
            export.ServingInputReceiver(tf.constant([0]), receiver_tensors)

    @pytest.mark.parametrize(
        "alternatives",
        [
            case(
                "exports",
                f"a ServingInputReceiver with the alternatives `{given}`",
                *says,
                values=(given,),
            )
            for given, *says in (
                ("no dict", "receiver_tensors_alternatives must be a dict: 'no dict'"),
                ({"a": None}, "receiver_tensors_alternatives must be defined"),
                ({"a": {1: "tensor"}}, "receiver_tensors_alternative keys must be strings"),
            )
        ],
    )
    @pytest.mark.behaviour(441)
    def test_alternatives_that_are_none(self, alternatives, refused):
        with refused(ValueError):
            export.ServingInputReceiver(tf.constant([0]), tf.constant([0]), alternatives)


class TestTensorServingInputReceiver:
    @pytest.mark.behaviour(440)
    def test_hands_the_bare_tensor_on(self):
        feature, fed = tf.constant([0]), tf.constant([1])
        receiver = export.TensorServingInputReceiver(feature, fed)
        assert receiver.features is feature
        assert receiver.receiver_tensors == {"input": fed}

    @pytest.mark.behaviour(440)
    def test_takes_a_sparse_tensor(self):
        sparse = tf.SparseTensor([[0, 0]], [1], [1, 1])
        assert export.TensorServingInputReceiver(sparse, tf.constant([0])).features is sparse

    @pytest.mark.parametrize(
        ("features", "message"),
        [(None, "features must be defined"), ({"a": 1}, "feature must be a Tensor")],
    )
    @pytest.mark.behaviour(440)
    def test_features_that_are_no_tensor(self, features, message):
        with pytest.raises(ValueError, match=message):
            export.TensorServingInputReceiver(features, tf.constant([0]))


class TestSupervisedInputReceiver:
    def test_features_and_labels_are_handed_on_as_given(self):
        feature, label = tf.constant([0]), tf.constant([1])
        receiver = export.SupervisedInputReceiver(feature, {0: label}, feature)
        assert receiver.features is feature
        assert receiver.labels == {0: label}
        assert receiver.receiver_tensors == {"input": feature}

    def test_what_stands_for_a_tensor_is_one(self):
        feature, label, fed = (tf.constant([number]) for number in range(3))
        receiver = export.SupervisedInputReceiver(
            given := Labeled(feature), {"y": (labeled := Labeled(label))}, Labeled(fed)
        )
        # model_fn gets the objects, as in the original; a request feeds the tensor itself.
        assert receiver.features is given
        assert receiver.labels == {"y": labeled}
        assert receiver.receiver_tensors == {"input": fed}
        serving = export.ServingInputReceiver({"x": given}, fed, {"other": Labeled(label)})
        assert serving.features == {"x": given}
        assert serving.receiver_tensors_alternatives == {"other": {"input": label}}
        assert export.TensorServingInputReceiver(given, fed).features is given

    def test_what_can_be_no_tensor_is_refused(self):
        label = types.SimpleNamespace(tensor=tf.constant([0]))
        with pytest.raises(ValueError, match=r"^label y must be a Tensor, SparseTensor"):
            export.SupervisedInputReceiver(tf.constant([0]), {"y": label}, tf.constant([0]))

    def test_labels_are_needed(self):
        with pytest.raises(ValueError, match="labels must be defined"):
            export.SupervisedInputReceiver(tf.constant([0]), None, tf.constant([0]))


@pytest.mark.behaviour(442)
def test_parsing_receiver_parses_serialised_examples():
    spec = {"number": tf.io.FixedLenFeature([1], tf.int64), "words": tf.io.VarLenFeature(tf.string)}
    receiver = export.build_parsing_serving_input_receiver_fn(spec)()
    assert set(receiver.receiver_tensors) == {"examples"}
    fed = receiver.receiver_tensors["examples"]
    assert fed.name == "input_example_tensor:0"
    assert fed.shape.as_list() == [None]
    example = tf.train.Example()
    example.features.feature["number"].int64_list.value.append(5)
    example.features.feature["words"].bytes_list.value.extend([b"a", b"b"])
    with v1.Session() as session:
        features = session.run(receiver.features, {fed: [example.SerializeToString()]})
    assert features["number"].tolist() == [[5]]
    assert features["words"].values.tolist() == [b"a", b"b"]


def test_ragged_features_of_a_plain_estimator_are_trained_predicted_and_served(tmp_path):
    ids, x = [[1], [2, 3], []], [1.0, 2.0, 3.0]

    def input_fn():
        features = {"ids": tf.ragged.constant(ids, dtype=tf.int64), "x": x}
        return tf.data.Dataset.from_tensor_slices(features).batch(2)

    def model_fn(features, mode):
        weights = v1.get_variable("weights", initializer=tf.range(4.0))
        logits = tf.reduce_sum(tf.gather(weights, features["ids"]), 1) + features["x"]
        loss = tf.reduce_sum(logits)
        train_op = v1.train.GradientDescentOptimizer(1.0).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"logits": logits})

    estimator = Estimator(model_fn, str(tmp_path)).train(input_fn)
    # Each id occurs once, so the training takes 1 from its weight.
    expected = [1.0 + 0, 2.0 + 1 + 2, 3.0]
    assert [each["logits"] for each in estimator.predict(input_fn)] == expected
    spec = {"ids": tf.io.RaggedFeature(tf.int64), "x": tf.io.FixedLenFeature([], tf.float32)}
    receiver_fn = export.build_parsing_serving_input_receiver_fn(spec)
    path = estimator.export_saved_model(str(tmp_path / "exports"), receiver_fn).decode()
    examples = []
    for of_row, value in zip(ids, x, strict=True):
        example = tf.train.Example()
        example.features.feature["ids"].int64_list.value.extend(of_row)
        example.features.feature["x"].float_list.value.append(value)
        examples.append(example.SerializeToString())
    with v1.Session(graph=tf.Graph()) as session:
        signatures = v1.saved_model.load(session, ["serve"], path).signature_def
        served = signatures["serving_default"]
        logits = session.run(
            served.outputs["logits"].name, {served.inputs["examples"].name: examples}
        )
    assert logits.tolist() == expected


@pytest.mark.behaviour(442)
def test_parsing_receiver_with_a_batch_size():
    spec = {"number": tf.io.FixedLenFeature([1], tf.int64)}
    receiver = export.build_parsing_serving_input_receiver_fn(spec, default_batch_size=4)()
    assert receiver.receiver_tensors["examples"].shape.as_list() == [4]
    assert receiver.features["number"].shape.as_list() == [4, 1]


@pytest.mark.behaviour(443)
def test_raw_receiver_takes_names_types_and_shapes(graph):
    with tf.Graph().as_default():
        features = {
            "a": v1.placeholder(tf.float32, [8, 3], name="of_a"),
            "b": v1.placeholder(tf.string, [8], name="of_b"),
            "unknown": v1.placeholder(tf.int32, None, name="of_unknown"),
        }
    receiver = export.build_raw_serving_input_receiver_fn(features)()
    assert receiver.features == receiver.receiver_tensors
    facts = {
        key: (tensor.name, tensor.dtype, tensor.shape.rank and tensor.shape.as_list())
        for key, tensor in receiver.features.items()
    }
    assert facts == {
        "a": ("of_a:0", tf.float32, [None, 3]),
        "b": ("of_b:0", tf.string, [None]),
        "unknown": ("of_unknown:0", tf.int32, None),
    }
    assert all(tensor.graph is graph for tensor in receiver.features.values())


@pytest.mark.behaviour(443)
def test_raw_receiver_with_a_batch_size_of_eager_tensors():
    with tf.init_scope():
        features = {"a": tf.zeros([2, 3])}
    receiver = export.build_raw_serving_input_receiver_fn(features, default_batch_size=8)()
    assert receiver.features["a"].shape.as_list() == [8, 3]


@pytest.mark.behaviour(444)
def test_raw_supervised_receiver_feeds_features_and_labels():
    features, label = {"a": tf.zeros([2, 3])}, tf.zeros([2], tf.int64)
    receiver = export.build_raw_supervised_input_receiver_fn(features, label)()
    assert set(receiver.receiver_tensors) == {"a", "label"}
    assert receiver.labels.dtype == tf.int64
    assert receiver.features["a"] is receiver.receiver_tensors["a"]


@pytest.mark.behaviour(444)
def test_raw_supervised_receiver_of_bare_tensors():
    receiver = export.build_raw_supervised_input_receiver_fn(tf.zeros([2, 3]), tf.zeros([2]))()
    assert set(receiver.receiver_tensors) == {"input", "label"}
    assert receiver.features.shape.as_list() == [None, 3]


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        case(
            "exports",
            f"a receiver of the features {features} and the labels {labels}",
            f"must have distinct keys. Found overlapping keys: ['{shared}']. Rename the label",
            values=(features, labels),
        )
        for features, labels, shared in (
            ({"a": 1, "b": 2}, {"b": 3}, "b"),
            (1, {"input": 2}, "input"),
            ({"label": 1}, 2, "label"),
        )
    ],
)
@pytest.mark.behaviour(444)
def test_raw_supervised_receiver_with_a_shared_key(features, labels, refused):
    with refused(ValueError):
        export.build_raw_supervised_input_receiver_fn(features, labels)


@pytest.mark.parametrize("as_dataset", [True, False])
@pytest.mark.behaviour(445)
def test_supervised_receiver_like_an_input_fn(as_dataset):
    def input_fn(rows):
        pair = {"x": np.zeros([rows, 3], np.float32)}, np.zeros([rows], np.int64)
        if as_dataset:
            return tf.data.Dataset.from_tensor_slices(pair).batch(2)
        return tf.nest.map_structure(tf.constant, pair)

    receiver = export.build_supervised_input_receiver_fn_from_input_fn(input_fn, rows=4)()
    assert receiver.features["x"].shape.as_list() == [None, 3]
    assert receiver.labels.dtype == tf.int64
    assert set(receiver.receiver_tensors) == {"x", "label"}


@pytest.mark.parametrize(
    "features",
    [
        case(
            "exports",
            f"a raw receiver of `{features!r}`",
            f"{where} must be a tensor or a tf.TensorSpec, got: {value!r}. Its type and shape",
            values=(features,),
        )
        for features, where, value in (
            (None, "features", None),
            ([1], "features", [1]),
            ({"x": 5}, "features['x']", 5),
            ({"x": (None, 3)}, "features['x']", (None, 3)),
        )
    ],
)
def test_a_raw_receiver_of_what_is_no_tensor(features, refused):
    with refused(ValueError):
        export.build_raw_serving_input_receiver_fn(features)


@pytest.mark.behaviour(445)
@row(
    "exports",
    "a supervised receiver like an input_fn without labels",
    "labels must be defined",
    "(features, labels)",
)
def test_supervised_receiver_like_an_input_fn_without_labels(refused):
    with refused(ValueError):
        export.build_supervised_input_receiver_fn_from_input_fn(lambda: {"x": tf.zeros([1])})

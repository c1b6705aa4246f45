from __future__ import annotations

import types

import pytest
import tensorflow as tf

from tests.bad_input import case
from tfx_tpu_trainer.estimator import export


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
        assert receiver.host_signatures == {"s": signature}
        assert len(receiver) == 3
        assert export.ServingInputReceiver(tensor, tensor).host_signatures is None

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

"""Exports the models as SavedModels, by our TPUEstimator and by Keras 3, with the same weights."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks import keras_models
from benchmarks.models import IDS, IMAGE_SIZE, MLP_FEATURES, MODELS, NUMBERS, make_model_fn
from tfx_tpu_trainer.estimator import export, tpu
from tfx_tpu_trainer.serving import load_serving

v1 = tf.compat.v1

Call = Callable[[], dict[str, Any]]
"""Sends one batch through a model and waits for the answer."""

# The input of a model whose features are a single tensor.
_LONE_INPUT = "x"


def export_both(model: str, folder: str) -> tuple[str, str]:
    """Exports a model in both ways."""
    network = keras_models.predicting(keras, keras_models.build(keras, model))
    network.export(f"{folder}/keras", verbose=False)
    return _export_ours(model, f"{folder}/ours"), f"{folder}/keras"


def batch(model: str, batch_size: int) -> dict[str, np.ndarray]:
    """Makes random features, the same on each call."""
    random = np.random.default_rng(seed=4)
    if model == "mlp":
        return {_LONE_INPUT: random.standard_normal((batch_size, MLP_FEATURES), dtype=np.float32)}
    if model == "cnn":
        shape = (batch_size, IMAGE_SIZE, IMAGE_SIZE, 1)
        return {_LONE_INPUT: random.integers(0, 256, shape, dtype=np.uint8)}
    ids = {name: random.integers(0, size, batch_size) for name, size in IDS.items()}
    return ids | {name: random.standard_normal(batch_size, dtype=np.float32) for name in NUMBERS}


def session_call(path: str, features: Mapping[str, np.ndarray]) -> Call:
    """Sends a batch through the default signature in a session, as TensorFlow Serving does."""
    graph = tf.Graph()
    with graph.as_default():
        session = v1.Session(graph=graph)
        meta_graph = v1.saved_model.load(session, [tf.saved_model.SERVING], path)
    signature = meta_graph.signature_def["serving_default"]
    inputs = _by_input(signature.inputs, features)
    outputs = {name: info.name for name, info in signature.outputs.items()}
    run = session.make_callable(
        [graph.get_tensor_by_name(name) for name in outputs.values()],
        [graph.get_tensor_by_name(signature.inputs[name].name) for name in inputs],
    )
    return lambda: dict(zip(outputs, run(*inputs.values()), strict=True))


def python_call(path: str, features: Mapping[str, np.ndarray]) -> Call:
    """Sends a batch through the default signature of the model that `load_serving` returns."""
    model = load_serving(path)
    signature = model.signatures["serving_default"]
    inputs = _by_input(signature.structured_input_signature[1], features)
    tensors = {name: tf.constant(value) for name, value in inputs.items()}

    def call() -> dict[str, Any]:
        # The signature alone would not keep the model's variables alive.
        answer = model.signatures["serving_default"](**tensors)
        return {name: value.numpy() for name, value in answer.items()}

    return call


WAYS: Mapping[str, Callable[[str, Mapping[str, np.ndarray]], Call]] = {
    "session": session_call,
    "Python": python_call,
}


def _by_input(names: Iterable[str], features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns each input's feature; Keras names a single input after its layer."""
    if len(features) == 1:
        return dict(zip(names, features.values(), strict=True))
    return {name: features[name] for name in names}


def check_same(ours: Mapping[str, Any], keras_answer: Mapping[str, Any]) -> None:
    """Raises unless both give the same predictions."""
    np.testing.assert_allclose(
        ours["probability"], keras_answer["probability"], rtol=1e-4, atol=1e-6
    )


def _export_ours(model: str, folder: str) -> str:
    model_fn = make_model_fn(MODELS[model], tpu)
    with tf.Graph().as_default(), v1.Session() as session:
        features = _receiver(model).features
        model_fn(features, None, "infer", {"use_tpu": False})
        v1.train.get_or_create_global_step()
        session.run(v1.global_variables_initializer())
        tf.io.gfile.makedirs(f"{folder}/model")
        checkpoint = v1.train.Saver().save(session, f"{folder}/model/initial.ckpt")
    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=f"{folder}/model"),
        use_tpu=False,
        train_batch_size=MODELS[model].batch_size,
    )
    return estimator.export_saved_model(
        f"{folder}/versions", lambda: _receiver(model), checkpoint_path=checkpoint
    ).decode()


def _receiver(model: str) -> Any:
    tensors = {
        name: v1.placeholder(value.dtype, [None, *value.shape[1:]], name=name)
        for name, value in batch(model, 1).items()
    }
    if len(tensors) == 1:
        return export.TensorServingInputReceiver(tensors[_LONE_INPUT], tensors)
    return export.ServingInputReceiver(tensors, tensors)

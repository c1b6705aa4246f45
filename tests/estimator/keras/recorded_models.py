"""Keras 2 models whose estimators the original has recorded, and what is recorded of them.

As a program it records them, as `original_keras.json`. That needs TensorFlow 2.15, the last with an estimator:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.keras.recorded_models
"""

import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

RECORDING = pathlib.Path(__file__).with_name("original_keras.json")

_ROWS = 24
_BATCH = 8
_STEPS = 5


def _one_output(keras: Any, optimizer: Any) -> Any:
    model = keras.Sequential(
        [
            keras.layers.Dense(4, activation="relu", input_shape=[5], name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(1, name="score"),
        ],
        name="one_output",
    )
    model.compile(optimizer, loss="mse", metrics=["mae", keras.metrics.MeanSquaredError()])
    return model


def _two_outputs(keras: Any, optimizer: Any) -> Any:
    left, right = keras.Input([3], name="left"), keras.Input([2], name="right")
    joined = keras.layers.Concatenate(name="joined")([left, right])
    hidden = keras.layers.Dense(
        4, activation="tanh", kernel_regularizer=keras.regularizers.l2(0.1), name="hidden"
    )(joined)
    score = keras.layers.Dense(1, name="score")(hidden)
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(hidden)
    model = keras.Model([left, right], [score, kind], name="two_outputs")
    model.compile(
        optimizer,
        loss={"score": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"score": 1.0, "kind": 0.5},
        metrics={"score": ["mae"], "kind": ["accuracy"]},
    )
    return model


# Name -> what makes the model.
MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "one_output": _one_output,
    "two_outputs": _two_outputs,
}
# Name -> what makes the optimizer. The original makes a legacy one of today's.
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "legacy_adam": lambda keras: keras.optimizers.legacy.Adam(0.01),
    "adam": lambda keras: keras.optimizers.Adam(0.01),
    "legacy_momentum": lambda keras: keras.optimizers.legacy.SGD(0.05, momentum=0.9),
    "v1_adagrad": lambda keras: v1.train.AdagradOptimizer(0.1),
}
FORMATS = ("checkpoint", "saver")
CASES = [
    (model, optimizer, form)
    for model in MODELS
    for optimizer in OPTIMIZERS
    for form in FORMATS
    if form == "saver" or model == "one_output"
]


def facts_of(
    keras: Any, tfe: Any, model_to_estimator: Any, case: tuple[str, str, str], folder: Any
) -> dict[str, Any]:
    """Trains, evaluates, predicts and exports a model, and tells what came of it.

    Args:
        keras: Keras 2.
        tfe: `tf.estimator`, or ours.
        model_to_estimator: Makes the estimator.
        case: One of `CASES`.
        folder: Where to.
    """
    name, optimizer, form = case
    model = MODELS[name](keras, OPTIMIZERS[optimizer](keras))
    values = np.random.RandomState(3)
    model.set_weights([values.uniform(0.1, 0.5, w.shape) for w in model.get_weights()])
    if name == "one_output":
        # Those that a model begins with: the original does not keep others.
        give_statistics(model, mean=0.0, variance=1.0)
    estimator = model_to_estimator(model, model_dir=f"{folder}/model", checkpoint_format=form)
    losses = _Losses()
    untrained = _predicted(estimator, name)
    estimator.train(_input_fn(name, _STEPS * _BATCH // _ROWS + 1), hooks=[losses], steps=_STEPS)
    receiver = {
        each: tf.TensorSpec([None, width], tf.float32, each)
        for each, width in _widths(name).items()
    }
    exported = estimator.export_saved_model(
        f"{folder}/export", tfe.export.build_raw_serving_input_receiver_fn(_graph_inputs(receiver))
    )
    signatures = tf.saved_model.load(exported.decode()).signatures
    return {
        "untrained": untrained,
        "losses": losses.seen,
        "evaluated": {k: float(v) for k, v in estimator.evaluate(_input_fn(name, 1)).items()},
        "predicted": _predicted(estimator, name),
        "variables": {
            each: list(np.shape(estimator.get_variable_value(each)))
            for each in estimator.get_variable_names()
            if each != "_CHECKPOINTABLE_OBJECT_GRAPH"
        },
        "signatures": {
            key: {
                "inputs": sorted(signature.structured_input_signature[1]),
                "outputs": sorted(signature.structured_outputs),
            }
            for key, signature in signatures.items()
        },
    }


def give_statistics(model: Any, *, mean: float, variance: float) -> None:
    """Sets these statistics of the batch norm of the model of one output."""
    norm = model.get_layer("norm")
    gamma, beta, *_ = norm.get_weights()
    norm.set_weights([gamma, beta, np.full_like(gamma, mean), np.full_like(gamma, variance)])


def prediction_with_statistics(
    keras: Any, model_to_estimator: Any, folder: Any
) -> tuple[Any, dict[str, list[float]]]:
    """Returns a model whose statistics are not the first ones, and its estimator's prediction."""
    model = MODELS["one_output"](keras, "sgd")
    values = np.random.RandomState(3)
    model.set_weights([values.uniform(0.1, 0.5, w.shape) for w in model.get_weights()])
    give_statistics(model, mean=0.25, variance=4.0)
    estimator = model_to_estimator(model, model_dir=f"{folder}/statistics")
    return model, _predicted(estimator, "one_output")


def first_row(name: str) -> dict[str, np.ndarray]:
    """The features of the row that is predicted, in a batch of one."""
    dataset = _input_fn(name, 1)().unbatch().batch(1)
    return {key: value.numpy() for key, value in next(iter(dataset))[0].items()}


class _Losses(v1.train.SessionRunHook):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def begin(self) -> None:
        (self._loss,) = set(v1.get_collection(v1.GraphKeys.LOSSES)[-1:])

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(float(run_values.results))


def _widths(name: str) -> dict[str, int]:
    return {"left": 3, "right": 2} if name == "two_outputs" else {"hidden_input": 5}


def _graph_inputs(receiver: dict[str, Any]) -> dict[str, Any]:
    with tf.Graph().as_default():
        return {
            key: v1.placeholder(spec.dtype, spec.shape, name=key) for key, spec in receiver.items()
        }


def _input_fn(name: str, epochs: int) -> Callable[[], Any]:
    def make() -> Any:
        source = np.random.RandomState(4)
        features = {
            each: source.randn(_ROWS, width).astype("float32")
            for each, width in _widths(name).items()
        }
        score = sum(value.sum(axis=1, keepdims=True) for value in features.values())
        kind = (np.arange(_ROWS) % 3).astype("int32")[:, None]
        labels = {"score": score, "kind": kind} if name == "two_outputs" else {"score": score}
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        return dataset.repeat(epochs).batch(_BATCH)

    return make


def _predicted(estimator: Any, name: str) -> dict[str, list[float]]:
    first = next(estimator.predict(_input_fn(name, 1)))
    return {key: [float(v) for v in np.ravel(value)] for key, value in sorted(first.items())}


def main() -> None:
    make = tf.keras.estimator.model_to_estimator
    facts = {
        "-".join(case): facts_of(tf.keras, tf.estimator, make, case, tempfile.mkdtemp())
        for case in CASES
    }
    _, predicted = prediction_with_statistics(tf.keras, make, tempfile.mkdtemp())
    facts["with_statistics"] = {"untrained": predicted}
    lines = [f"{json.dumps(case)}: {json.dumps(found)}" for case, found in facts.items()]
    RECORDING.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

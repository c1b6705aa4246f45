"""Canned estimators on one small table, trained in the same way by the original and by ours.

Also a program: it trains and prints what came of it, in whichever environment it runs.

    python -m tests.estimator.canned.canned_runs RUN FOLDER STEPS
"""

import importlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests.estimator._engine.event_files import read_values

v1 = tf.compat.v1
fc = tf.feature_column

BATCH, ROWS = 8, 24
COLOURS = ["red", "green", "blue"]
GRADES = ["low", "middle", "high"]


def _table() -> dict[str, np.ndarray]:
    """Features and labels by name; every row has its own."""
    random = np.random.RandomState(5)
    words = random.choice(["a", "bb", "ccc", "dddd", ""], (ROWS, 3))
    words[:, 0] = random.choice(["a", "bb"], ROWS)
    return {
        "age": random.uniform(0, 80, ROWS).astype(np.float32),
        "pair": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "colour": random.choice([*COLOURS, "violet"], ROWS),
        "words": words,
        "weight": random.choice([0.5, 1.0, 2.0], ROWS).astype(np.float32),
        "binary": random.randint(0, 2, ROWS),
        "grade": random.choice(GRADES, ROWS),
        "class": random.randint(0, 3, ROWS),
        "target": random.uniform(-1, 1, ROWS).astype(np.float32),
        "targets": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "count": random.poisson(2.0, ROWS).astype(np.float32),
        "several": random.randint(0, 2, (ROWS, 3)),
    }


TABLE = _table()
FEATURES = ("age", "pair", "colour", "words", "weight")


def input_fn_of(
    label: str, *, epochs: int | None, names: Sequence[str] = FEATURES
) -> Callable[[], tf.data.Dataset]:
    """An input function of the table.

    Args:
        label: Name of the label in `TABLE`.
        epochs: How often the table is read; `None` for without end.
        names: Names of the features. Defaults to all.
    """
    features = {name: TABLE[name] for name in names}

    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((features, TABLE[label]))
        return dataset.repeat(epochs).batch(BATCH)

    return input_fn


def linear_columns() -> list[Any]:
    """Columns of every kind that a linear model takes."""
    age = fc.numeric_column("age", normalizer_fn=lambda value: value / 80)
    ages = fc.bucketized_column(fc.numeric_column("age"), [20.0, 40.0, 60.0])
    colour = fc.categorical_column_with_vocabulary_list("colour", COLOURS, num_oov_buckets=1)
    words = fc.categorical_column_with_hash_bucket("words", 10)
    return [age, fc.numeric_column("pair", 2), ages, colour, words, _crossed(ages)]


def _crossed(ages: Any) -> Any:
    return fc.crossed_column([ages, "colour"], 12)


def dnn_columns() -> list[Any]:
    """Columns of every kind that a deep model takes."""
    words = fc.categorical_column_with_hash_bucket("words", 10)
    colour = fc.categorical_column_with_vocabulary_list("colour", COLOURS)
    return [
        fc.numeric_column("age", normalizer_fn=lambda value: value / 80),
        fc.numeric_column("pair", 2),
        fc.indicator_column(colour),
        fc.embedding_column(words, 2, combiner="mean"),
    ]


class Run(NamedTuple):
    """A canned estimator, how it is made and which label it learns.

    Attributes:
        name: Name of the class.
        label: Name of the label in `TABLE`.
        arguments: From (the API with the heads, is it V1) to arguments of the constructor.
        features: Names of the features; the original's baselines can't start with several.
    """

    name: str
    label: str
    arguments: Callable[[Any, bool], dict[str, Any]]
    features: Sequence[str] = FEATURES

    def input_fn(self, *, epochs: int | None) -> Callable[[], tf.data.Dataset]:
        """An input function of the table; see `input_fn_of`."""
        return input_fn_of(self.label, epochs=epochs, names=self.features)


def _combined(*_: Any) -> dict[str, Any]:
    return {
        "linear_feature_columns": linear_columns(),
        "dnn_feature_columns": dnn_columns(),
        "dnn_hidden_units": [3, 2],
    }


def _deep(*_: Any) -> dict[str, Any]:
    return {"hidden_units": [3, 2], "feature_columns": dnn_columns()}


def _linear(*_: Any) -> dict[str, Any]:
    return {"feature_columns": linear_columns()}


def _adam(rate: float) -> Callable[[bool], Any]:
    def make(is_v1: bool) -> Any:
        return v1.train.AdamOptimizer(rate) if is_v1 else tf.keras.optimizers.legacy.Adam(rate)

    return make


def _momentum(is_v1: bool) -> Any:
    """For batch normalization, which cancels biases: Adam would blow up what rounding leaves."""
    if is_v1:
        return v1.train.MomentumOptimizer(0.05, 0.9)
    return tf.keras.optimizers.legacy.SGD(0.05, momentum=0.9)


def _sum_or_mean(is_v1: bool) -> str:
    """The reduction that is not the default one."""
    return v1.losses.Reduction.SUM_OVER_BATCH_SIZE if is_v1 else "sum"


RUNS: dict[str, Run] = {
    "linear_classifier": Run("LinearClassifier", "binary", _linear),
    "linear_classifier_of_words": Run(
        "LinearClassifier",
        "grade",
        lambda api, is_v1: {
            **_linear(),
            "n_classes": 3,
            "label_vocabulary": GRADES,
            "weight_column": "weight",
            "optimizer": None,
            "sparse_combiner": "sqrtn",
        },
    ),
    "linear_regressor": Run(
        "LinearRegressor",
        "targets",
        lambda api, is_v1: {
            **_linear(),
            "label_dimension": 2,
            "optimizer": "SGD",
            "loss_reduction": _sum_or_mean(is_v1),
            "sparse_combiner": "mean",
        },
    ),
    "linear_estimator": Run(
        "LinearEstimator",
        "several",
        lambda api, is_v1: {
            **_linear(),
            "head": api.MultiLabelHead(3, weight_column="weight"),
            "optimizer": lambda: _adam(0.1)(is_v1),
        },
    ),
    "dnn_classifier": Run("DNNClassifier", "binary", _deep),
    "dnn_classifier_of_words": Run(
        "DNNClassifier",
        "grade",
        lambda api, is_v1: {
            **_deep(),
            "n_classes": 3,
            "label_vocabulary": GRADES,
            "weight_column": fc.numeric_column("weight"),
            "optimizer": "RMSProp",
            "activation_fn": tf.nn.tanh,
            "loss_reduction": _sum_or_mean(is_v1),
        },
    ),
    "dnn_regressor": Run(
        "DNNRegressor",
        "target",
        lambda api, is_v1: {
            **_deep(),
            "optimizer": _momentum(is_v1),
            "batch_norm": True,
            "dropout": 0.0,
        },
    ),
    "dnn_estimator": Run(
        "DNNEstimator",
        "count",
        lambda api, is_v1: {**_deep(), "head": api.PoissonRegressionHead(), "optimizer": "Adam"},
    ),
    "combined_classifier": Run("DNNLinearCombinedClassifier", "binary", _combined),
    "combined_regressor": Run(
        "DNNLinearCombinedRegressor",
        "target",
        lambda api, is_v1: {
            **_combined(),
            "weight_column": "weight",
            "linear_optimizer": "SGD",
            "dnn_optimizer": _momentum(is_v1),
            "batch_norm": True,
            "linear_sparse_combiner": "mean",
        },
    ),
    "combined_estimator_only_linear": Run(
        "DNNLinearCombinedEstimator",
        "class",
        lambda api, is_v1: {
            "head": api.MultiClassHead(3),
            "linear_feature_columns": linear_columns(),
        },
    ),
    "combined_estimator_only_dnn": Run(
        "DNNLinearCombinedEstimator",
        "class",
        lambda api, is_v1: {
            "head": api.MultiClassHead(3),
            "dnn_feature_columns": dnn_columns(),
            "dnn_optimizer": _adam(0.05)(is_v1),
            "dnn_hidden_units": [3],
        },
    ),
    "baseline_classifier": Run(
        "BaselineClassifier",
        "class",
        lambda api, is_v1: {"n_classes": 3, "weight_column": "weight"},
        ("age", "weight"),
    ),
    "baseline_regressor": Run(
        "BaselineRegressor",
        "targets",
        lambda api, is_v1: {"label_dimension": 2},
        ("age",),
    ),
    "baseline_estimator": Run(
        "BaselineEstimator",
        "binary",
        lambda api, is_v1: {"head": api.BinaryClassHead(), "optimizer": "Adagrad"},
        ("age",),
    ),
}
# The original's public heads take Keras optimizers only, which these two of V1 do not make.
ONLY_V2 = ("linear_estimator", "dnn_estimator")
ALL = [
    f"{run} {version}"
    for run in RUNS
    for version in ("v1", "v2")
    if version == "v2" or run not in ONLY_V2
]


def original_api(run: str) -> tuple[Any, Any]:
    """The original's (API of the estimators, API of the heads) for a key of `ALL`."""
    return (v1.estimator if run.endswith("v1") else tf.estimator), tf.estimator


def our_api(run: str) -> tuple[Any, Any]:
    """Our (API of the estimators, API of the heads) for a key of `ALL`."""
    ours = importlib.import_module("tfx_tpu_trainer.estimator")
    return (ours.v1 if run.endswith("v1") else ours), ours


def make(apis: tuple[Any, Any], run: str, folder: str, **arguments: Any) -> Any:
    """The estimator of a run.

    Args:
        apis: What `original_api` or `our_api` gives.
        run: A key of `ALL`.
        folder: Its model folder.
        **arguments: More arguments of its constructor.
    """
    name, version = run.split()
    config = apis[1].RunConfig(
        tf_random_seed=3, save_summary_steps=2, save_checkpoints_steps=1000, model_dir=folder
    )
    estimator = getattr(apis[0], RUNS[name].name)
    given = RUNS[name].arguments(apis[1], version == "v1")
    return estimator(**{**given, "config": config, **arguments})


class SetFirstValues(v1.train.SessionRunHook):
    """Sets each trainable variable of a new model to values that follow from its name.

    Op seeds differ between versions of TensorFlow, so initializers can't be compared.
    """

    def __init__(self, scope: str = "") -> None:
        """Takes the scope of the variables, all by default; others start as they are."""
        self._scope = scope

    def begin(self) -> None:
        self._variables = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=self._scope)
        self._step = v1.train.get_global_step()

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        del coord
        if session.run(self._step) > 0:
            return
        for variable in self._variables:
            name = variable.op.name.replace("/part_0", "")
            seed = zlib.crc32(name.encode())
            values = np.random.RandomState(seed).uniform(-0.5, 0.5, variable.shape.as_list())
            variable.load(values.astype(np.float32), session)


def _plain(value: Any) -> Any:
    """A value as JSON has it, with the 7 digits that a float32 has."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        array = np.vectorize(lambda number: float(f"{number:.7g}"), otypes=[float])(array)
    plain = array.tolist()
    flat = plain if isinstance(plain, list) else [plain]
    if flat and isinstance(flat[0], bytes):
        plain = [each.decode() for each in flat]
    return plain


def _signatures(folder: str) -> dict[str, Any]:
    """Signature name -> (inputs, outputs), each key -> (type, shape)."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        saved.ParseFromString(file.read())

    def described(tensors: Any) -> dict[str, Any]:
        return {
            key: [info.dtype, [each.size for each in info.tensor_shape.dim]]
            for key, info in tensors.items()
        }

    return {
        name: [described(signature.inputs), described(signature.outputs), signature.method_name]
        for name, signature in saved.meta_graphs[0].signature_def.items()
    }


def serving_input_receiver_fn(
    apis: tuple[Any, Any], names: Sequence[str] = FEATURES
) -> Callable[[], Any]:
    """A receiver of serialized Examples with the features of the table."""
    lengths = {"pair": 2, "words": 3}
    spec = {
        name: tf.io.FixedLenFeature(
            [lengths[name]] if name in lengths else [1],
            tf.float32 if TABLE[name].dtype == np.float32 else tf.string,
        )
        for name in names
    }
    return apis[1].export.build_parsing_serving_input_receiver_fn(spec)


def facts(apis: tuple[Any, Any], run: str, folder: str, steps: int) -> dict[str, Any]:
    """Trains some steps more, evaluates, predicts and exports; gives what came of it."""
    made_as = RUNS[run.split()[0]]
    estimator = make(apis, run, folder)
    estimator.train(made_as.input_fn(epochs=None), steps=steps, hooks=[SetFirstValues()])
    metrics = estimator.evaluate(made_as.input_fn(epochs=1))
    rows = list(estimator.predict(made_as.input_fn(epochs=1)))[:2]
    exported = estimator.export_saved_model(
        os.path.join(folder, "export"), serving_input_receiver_fn(apis, made_as.features)
    )
    values = {
        name: estimator.get_variable_value(name) for name in sorted(estimator.get_variable_names())
    }
    return {
        "metrics": {name: _plain(value) for name, value in sorted(metrics.items())},
        "predictions": [{key: _plain(value) for key, value in sorted(row.items())} for row in rows],
        "values": {name: _plain(value) for name, value in values.items()},
        "signatures": _signatures(tf.compat.as_text(exported)),
        "tags": sorted(read_values(folder)),
        "eval_tags": sorted(read_values(estimator.eval_dir())),
    }


def main() -> None:
    """Prints the facts of a run as JSON, by whichever estimator this environment has."""
    run, folder, steps = sys.argv[1:]
    has_original = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)
    apis = (original_api if has_original else our_api)(run)
    print(json.dumps(facts(apis, run, folder, int(steps))))


if __name__ == "__main__":
    main()

"""What an EmbeddingConfigSpec is and does, as JSON values, of the original's and of ours; records the original's.

`original_embeddings.json` beside this is what this module wrote under TensorFlow 2.15, the last with an estimator. Run
by hand from the repository's root whenever it or `embedded.py` changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.tpu.embedding.record_original_embeddings
"""

import inspect
import json
import pathlib
import tempfile
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.estimator.tpu.embedding import embedded

v1 = tf.compat.v1

RECORDING = pathlib.Path(__file__).with_name("original_embeddings.json")

CLASSES = (
    "AdagradParameters",
    "AdamParameters",
    "FeatureConfig",
    "FtrlParameters",
    "MomentumParameters",
    "ProximalAdagradParameters",
    "RMSPropParameters",
    "StochasticGradientDescentParameters",
    "TableConfig",
)


def host_facts(tpu: Any, experimental: Any, folder: Any) -> dict[str, Any]:
    """A run with use_tpu=False and a spec: variables after training, metrics, predictions."""
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), experimental.AdagradParameters(0.1))
    model_fn = embedded.model_fn_for(tpu, optimizer=lambda: v1.train.AdagradOptimizer(0.1))
    estimator = embedded.estimator(tpu, folder, spec, model_fn, cores=None)
    estimator.train(embedded.input_fn, steps=4)
    metrics = estimator.evaluate(embedded.finite_input_fn)
    predictions = estimator.predict(embedded.finite_input_fn)
    return {
        "variables": {name: v.tolist() for name, v in embedded.variables(estimator).items()},
        "metrics": {name: float(value) for name, value in metrics.items()},
        "predictions": [float(row["output"][0]) for row in predictions],
    }


def error_facts(tpu: Any, experimental: Any, folder: Any) -> dict[str, list[str]]:
    """What is raised where a spec does not hold: behaviour -> [type, message]."""
    identity = tf.feature_column.categorical_column_with_identity
    column = v1.tpu.experimental.embedding_column(identity("word", 10), 4)
    parameters = experimental.AdagradParameters(0.1)
    tables = {"words": experimental.TableConfig(10, 4)}
    features = {"word": experimental.FeatureConfig("words")}
    make = experimental.EmbeddingConfigSpec
    spec = make([column], parameters)

    def estimator(spec: Any = spec, *, shards: int | None = None, mode: int = 2, **options: Any):
        tpu_config = tpu.TPUConfig(num_shards=shards, per_host_input_for_training=mode)
        config = tpu.RunConfig(model_dir=str(folder), tpu_config=tpu_config)
        return tpu.TPUEstimator(
            embedded.model_fn_for(tpu),
            config=config,
            train_batch_size=8,
            embedding_config_spec=spec,
            **options,
        )

    mod = make([column], parameters, partition_strategy="mod")
    calls: dict[str, Callable[[], Any]] = {
        "9": lambda: estimator(mode=4),
        "10": lambda: estimator(mod, eval_on_tpu=False),
        "11": lambda: estimator(shards=1),
        "352 none": lambda: make(optimization_parameters=parameters),
        "352 both": lambda: make(
            [column], parameters, feature_to_config_dict=features, table_to_config_dict=tables
        ),
        "353": lambda: make([column], parameters, partition_strategy="row"),
        "354": lambda: make([identity("word", 10)], parameters),
        "355": lambda: make([column], None),
        "356 feature": lambda: make(
            feature_to_config_dict={"word": 1}, table_to_config_dict=tables
        ),
        "356 table": lambda: make(
            feature_to_config_dict=features, table_to_config_dict={"words": 1}
        ),
        "356 absent": lambda: make(
            feature_to_config_dict=features, table_to_config_dict={"tags": tables["words"]}
        ),
        "combiner": lambda: experimental.TableConfig(10, 4, combiner="max"),
        "length": lambda: experimental.FeatureConfig("words", -1),
    }
    return {name: _raised(call) for name, call in calls.items()}


def signature_facts(experimental: Any) -> dict[str, dict[str, Any]]:
    """The arguments of the public classes and their defaults, as text."""
    return {
        name: {
            parameter.name: repr(parameter.default)
            for parameter in inspect.signature(getattr(experimental, name)).parameters.values()
            if parameter.default is not inspect.Parameter.empty
        }
        for name in (*CLASSES, "EmbeddingConfigSpec")
    }


def _raised(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except (TypeError, ValueError) as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def main() -> None:
    from tensorflow.python.tpu import tpu_embedding

    tpu = v1.estimator.tpu
    experimental = types.SimpleNamespace(
        EmbeddingConfigSpec=tpu.experimental.EmbeddingConfigSpec,
        **{name: getattr(tpu_embedding, name) for name in CLASSES},
    )
    with tempfile.TemporaryDirectory() as folder:
        recording = {
            "tensorflow": tf.__version__,
            "host": host_facts(tpu, experimental, folder),
            "errors": error_facts(tpu, experimental, folder),
            "signatures": signature_facts(experimental),
        }
    RECORDING.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Records what the original's TPUEstimator exports, as `original_exports.json` next to this file.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever `recorded_model.py`, `recorded_serving.py` or `saved_model_facts.py` changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.export.record_original
"""

import json
import os
import tempfile

import tensorflow as tf
from tensorflow_estimator.python.estimator.tpu import tpu_estimator as original_helpers

from tests.estimator.export import recorded_model, recorded_serving, saved_model_facts

v1 = tf.compat.v1
RECORDING = os.path.join(os.path.dirname(__file__), "original_exports.json")


def record(case: str, folder: str) -> dict:
    """Trains two steps on the host, exports for both, reads the SavedModel's facts and serves."""
    vocabulary = recorded_model.write_vocabulary(os.path.join(folder, "colours.txt"))
    estimator = v1.estimator.tpu.TPUEstimator(
        model_fn=recorded_model.model_fn_for(v1.estimator.tpu, tf.estimator.export, case),
        config=v1.estimator.tpu.RunConfig(model_dir=os.path.join(folder, case)),
        use_tpu=False,
        train_batch_size=4,
    )
    estimator.train(recorded_model.training_input_fn, max_steps=2)
    path = estimator.export_saved_model(
        os.path.join(folder, f"{case}_export"),
        recorded_model.receiver_fn(tf.estimator.export, vocabulary),
    )
    return {
        "meta_graphs": saved_model_facts.read_facts(path.decode()),
        "served": recorded_model.serve(path.decode()),
    }


def record_version_2(case: str, folder: str) -> dict:
    """Trains one step and exports with API version 2; model_fn puts itself on the TPU."""
    estimator = v1.estimator.tpu.TPUEstimator(
        model_fn=recorded_serving.model_fn_for(
            v1.estimator.tpu.TPUEstimatorSpec,
            tf.estimator.export.PredictOutput,
            original_helpers,
            case,
        ),
        config=v1.estimator.tpu.RunConfig(model_dir=os.path.join(folder, case)),
        use_tpu=False,
        train_batch_size=4,
        export_saved_model_api_version=2,
    )
    estimator.train(recorded_serving.input_fn, max_steps=1)
    path = estimator.export_saved_model(
        os.path.join(folder, f"{case}_export"),
        recorded_serving.receiver_fn(tf.estimator.export),
    ).decode()
    return {
        "meta_graphs": saved_model_facts.read_facts(path),
        "served": recorded_serving.serve(path),
    }


def record_modes(folder: str) -> dict:
    """Trains one step and exports every way that there is."""
    settings = {
        "model_fn": recorded_serving.supervised_model_fn_for(v1.estimator.tpu.TPUEstimatorSpec),
        "config": v1.estimator.tpu.RunConfig(model_dir=os.path.join(folder, "modes")),
        "use_tpu": False,
        "train_batch_size": 4,
    }
    estimator = v1.estimator.tpu.TPUEstimator(**settings)
    estimator.train(recorded_serving.input_fn, max_steps=1)
    serving = recorded_serving.receiver_fn(tf.estimator.export)
    supervised = recorded_serving.supervised_receiver_fn(
        tf.estimator.experimental.build_raw_supervised_input_receiver_fn
    )
    receivers = {"train": supervised, "eval": supervised, "infer": serving}
    plain = tf.estimator.Estimator(
        recorded_serving.model_fn_for(
            tf.estimator.EstimatorSpec, tf.estimator.export.PredictOutput, None, "plain"
        ),
        model_dir=os.path.join(folder, "plain"),
        params={"use_tpu": False},
    )
    plain.train(recorded_serving.input_fn, max_steps=1)
    ways = {
        "train": lambda base: estimator.export_saved_model(
            base, supervised, experimental_mode="train"
        ),
        "eval": lambda base: estimator.export_saved_model(
            base, supervised, experimental_mode="eval"
        ),
        "all": lambda base: estimator.experimental_export_all_saved_models(base, receivers),
        "old_name": lambda base: v1.estimator.tpu.TPUEstimator(**settings).export_savedmodel(
            base, serving
        ),
        "old_name_stripped": lambda base: estimator.export_savedmodel(
            base, serving, strip_default_attrs=True
        ),
        "eval_without_cpu": lambda base: v1.estimator.tpu.TPUEstimator(
            **settings, export_to_cpu=False
        ).export_saved_model(base, supervised, experimental_mode="eval"),
        "plain_for_tpu": lambda base: original_helpers.export_estimator_savedmodel(
            plain, base, serving
        ),
    }
    recorded = {}
    for name, export in ways.items():
        try:
            path = export(os.path.join(folder, f"export_{name}")).decode()
        except Exception as error:
            recorded[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        recorded[name] = {
            "meta_graphs": saved_model_facts.read_facts(path),
            "variables": dict(tf.train.list_variables(f"{path}/variables/variables"))
            if os.path.exists(f"{path}/variables")
            else None,
        }
    return recorded


def record_names() -> dict:
    """The public names of the modules that ours mirror."""
    modules = {
        "estimator": tf.estimator,
        "estimator.experimental": tf.estimator.experimental,
        "estimator.export": tf.estimator.export,
        "estimator.tpu": v1.estimator.tpu,
        "estimator.tpu.experimental": v1.estimator.tpu.experimental,
    }
    return {
        name: [each for each in dir(module) if not each.startswith("_")]
        for name, module in modules.items()
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recording = {
            "tensorflow": tf.__version__,
            "cases": {case: record(case, folder) for case in ("default", "signatures")},
            "version_2": {case: record_version_2(case, folder) for case in recorded_serving.CASES},
            "modes": record_modes(folder),
            "names": record_names(),
        }
    with open(RECORDING, "w", encoding="utf-8") as file:
        json.dump(recording, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()

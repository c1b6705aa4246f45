"""Records what the original's TPUEstimator exports, as `original_exports.json` beside this file.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever `recorded_model.py` or `saved_model_facts.py` changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.export.record_original
"""

from __future__ import annotations

import json
import os
import tempfile

import tensorflow as tf

from tests.estimator.export import recorded_model, saved_model_facts

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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases = {case: record(case, folder) for case in ("default", "signatures")}
    with open(RECORDING, "w", encoding="utf-8") as file:
        json.dump({"tensorflow": tf.__version__, "cases": cases}, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()

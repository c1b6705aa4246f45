"""Records what the original's TPUEstimator and RunConfig do, as `original_runs.json` beside this.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever `linear_model.py` or `original_facts.py` changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.record_original
"""

import json
import os
import pathlib
import tempfile
from typing import Any

import tensorflow as tf

from tests.estimator import linear_model, original_facts

RECORDING = pathlib.Path(__file__).with_name("original_runs.json")
_tpu = tf.compat.v1.estimator.tpu


def _record_places() -> dict[str, Any]:
    places = {}
    for name, tf_config in original_facts.TF_CONFIGS.items():
        os.environ["TF_CONFIG"] = json.dumps(tf_config)
        places[name] = {
            "estimator": original_facts.place_facts(tf.estimator.RunConfig),
            "tpu": original_facts.place_facts(_tpu.RunConfig),
        }
    del os.environ["TF_CONFIG"]
    return places


def main() -> None:
    runs = {}
    for optimizer in linear_model.OPTIMIZERS:
        with tempfile.TemporaryDirectory() as folder:
            runs[optimizer] = original_facts.run_facts(_tpu, optimizer, folder)
    recording = {"tensorflow": tf.__version__, "runs": runs, "places": _record_places()}
    RECORDING.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

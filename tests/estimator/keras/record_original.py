"""Records what the original's `model_to_estimator` makes of the models of `recorded_models.py`.

Run by TensorFlow 2.15, the last with an estimator, this writes `original_keras.json` beside it:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.keras.record_original
"""

import json
import tempfile

import tensorflow as tf

from tests.estimator.keras.recorded_models import (
    CASES,
    RECORDING,
    facts_of,
    prediction_with_statistics,
)


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

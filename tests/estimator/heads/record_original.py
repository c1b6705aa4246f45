"""Records what the original's heads do, as JSON in `recorded/`.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever `head_cases.py`, `head_facts.py` or `head_facts.py` changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.heads.record_original
"""

import json
import pathlib
import tempfile
import types
from typing import Any

import tensorflow as tf
from tensorflow_estimator.python.estimator.canned import head as v1_head

from tests.estimator.heads import head_cases, head_facts

RECORDED = pathlib.Path(__file__).with_name("recorded")
V1_HEADS = types.SimpleNamespace(
    binary=v1_head._binary_logistic_head_with_sigmoid_cross_entropy_loss,
    multi_class=v1_head._multi_class_head_with_softmax_cross_entropy_loss,
    regression=v1_head._regression_head,
)


def _write(name: str, facts: dict[str, Any]) -> None:
    text = json.dumps({"tensorflow": tf.__version__, **facts}, indent=1, sort_keys=True)
    (RECORDED / name).write_text(text + "\n", encoding="utf-8")


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    heads = {
        name: {
            **head_facts.head_facts(case.head(tf.estimator), case),
            "eager": head_facts.eager_facts(case.head(tf.estimator), case),
        }
        for name, case in head_cases.CASES.items()
    }
    _write("heads.json", {"heads": heads})
    v1_heads = {
        name: head_facts.head_facts(case.head(V1_HEADS), case)
        for name, case in head_cases.V1_CASES.items()
    }
    _write("v1_heads.json", {"heads": v1_heads})
    trained = {}
    for name in head_facts.OPTIMIZERS:
        with tempfile.TemporaryDirectory() as folder:
            trained[name] = head_facts.trained_facts(
                tf.estimator, tf.keras.optimizers.legacy, name, folder
            )
    _write("trained.json", {"optimizers": trained})


if __name__ == "__main__":
    main()

"""A module that imports TensorFlow and writes down what has come with it; see test_loading.py."""

import json
import sys
from pathlib import Path

import tensorflow as tf

COME_WITH_IT = [
    name for name in ("googleapiclient", "keras", "pandas", "tf_keras") if sys.modules.get(name)
]


def main(path: str) -> None:
    told = {"with_tensorflow": COME_WITH_IT, "keras": tf.keras.__name__}
    Path(path).write_text(json.dumps(told), encoding="utf-8")

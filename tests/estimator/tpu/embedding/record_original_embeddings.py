"""Records what the original does with embeddings, as `original_embeddings.json` beside this.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever `embedded.py` or `original_facts.py` of this folder changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.tpu.embedding.record_original_embeddings
"""

from __future__ import annotations

import json
import pathlib
import tempfile
import types

import tensorflow as tf
from tensorflow.python.tpu import tpu_embedding

from tests.estimator.tpu.embedding import original_facts

RECORDING = pathlib.Path(__file__).with_name("original_embeddings.json")


def main() -> None:
    tpu = tf.compat.v1.estimator.tpu
    experimental = types.SimpleNamespace(
        EmbeddingConfigSpec=tpu.experimental.EmbeddingConfigSpec,
        **{name: getattr(tpu_embedding, name) for name in original_facts.CLASSES},
    )
    with tempfile.TemporaryDirectory() as folder:
        recording = {
            "tensorflow": tf.__version__,
            "host": original_facts.host_facts(tpu, experimental, folder),
            "errors": original_facts.error_facts(tpu, experimental, folder),
            "signatures": original_facts.signature_facts(experimental),
        }
    RECORDING.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

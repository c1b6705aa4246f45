"""Records how the original trains the exchanged models, and keeps a checkpoint that it wrote.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever `exchanged_models.py` changes; it writes `original_exchange.json` and the checkpoint
of `original_checkpoint/`, of the model with an embedding and a loop after 4 steps with Adam:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.record_original_exchange
"""

import itertools
import json
import pathlib
import shutil
import tempfile

import tensorflow as tf

from tests.estimator import exchanged_models

HERE = pathlib.Path(__file__).parent
RECORDING = HERE / "original_exchange.json"
CHECKPOINT = HERE / "original_checkpoint"
CHECKPOINT_OF = ("embedding_and_loop", "adam")
STEPS = 4


def main() -> None:
    """Trains each model with each optimizer, twice, the second time from the first one's end."""
    tpu = tf.compat.v1.estimator.tpu
    runs = {}
    for model, optimizer in itertools.product(exchanged_models.MODELS, exchanged_models.OPTIMIZERS):
        with tempfile.TemporaryDirectory() as folder:
            first = exchanged_models.trained_facts(tpu, model, optimizer, folder, STEPS)
            if (model, optimizer) == CHECKPOINT_OF:
                _keep_checkpoint(folder)
            second = exchanged_models.trained_facts(tpu, model, optimizer, folder, STEPS)
        runs[f"{model} {optimizer}"] = {"first": first, "second": second}
    recording = {"tensorflow": tf.__version__, "runs": runs}
    RECORDING.write_text(json.dumps(recording, indent=None, sort_keys=True) + "\n")


def _keep_checkpoint(folder: str) -> None:
    shutil.rmtree(CHECKPOINT, ignore_errors=True)
    CHECKPOINT.mkdir()
    for file in pathlib.Path(folder).iterdir():
        if file.name.startswith(f"model.ckpt-{STEPS}.") and file.suffix != ".meta":
            shutil.copy(file, CHECKPOINT)
    state = f'model_checkpoint_path: "model.ckpt-{STEPS}"\n'
    (CHECKPOINT / "checkpoint").write_text(state)


if __name__ == "__main__":
    main()

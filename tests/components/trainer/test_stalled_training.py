"""A TpuTrainer whose input stops: the attempt ends, and the next one goes on from its checkpoint."""

from __future__ import annotations

import pytest

from tests.components.trainer.execution import Execution
from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StalledError

pytestmark = [pytest.mark.e2e, pytest.mark.sweep]

# After 12 batches its input waits, unless there is a file beside it.
_MODULE = """
import pathlib
import tensorflow as tf
import tensorflow_transform as tft
from tests.components.trainer.small_model import model_fn, params

def input_fn(params, mode, fn_args):
    files = fn_args.train_files if mode == "train" else fn_args.eval_files
    spec = tft.TFTransformOutput(fn_args.transform_graph_path).transformed_feature_spec()
    paths = [path for pattern in files for path in tf.io.gfile.glob(pattern)]

    def parse(rows):
        features = tf.io.parse_example(rows, spec)
        return features, features["tips_xf"]

    def wait(features, label):
        with tf.control_dependencies([label]):
            queue = tf.queue.FIFOQueue(1, [tf.int64], shapes=[()])
            return features, label + queue.dequeue()

    rows = tf.data.TFRecordDataset(paths, compression_type="GZIP")
    batches = rows.batch(params["batch_size"], drop_remainder=mode == "train").map(parse)
    if mode == "train" and not pathlib.Path({flag!r}).exists():
        return batches.take(12).concatenate(batches.map(wait))
    return batches.repeat() if mode == "train" else batches
"""


def test_an_attempt_whose_input_stops_ends_and_the_next_one_goes_on(tmp_path, caplog):
    flag, module = tmp_path / "goes_on", tmp_path / "own_input.py"
    module.write_text(_MODULE.format(flag=str(flag)))

    def execution(name):
        (tmp_path / name).mkdir()
        return Execution.of_trainer(
            tmp_path / name,
            steps=20,
            module=None,
            module_file=str(module),
            label_key=None,
            eval_batch_size=1000,
            save_checkpoints_steps=5,
            stall_timeout_secs=5,
            checkpoint_root=str(tmp_path / "checkpoints"),
        )

    first = execution("first")
    with pytest.raises(StalledError, match=r"Training has finished no step .*stall_timeout_secs=5"):
        first.run()
    assert first.files() == []
    flag.touch()
    again = execution("again")
    with log_lines(caplog) as logged:
        again.run()
    restored = [line for line in logged if line.startswith("Restoring parameters from")]
    assert restored[0].endswith("model.ckpt-10")
    assert read_eval_metrics(again.model.uri).global_step == 20

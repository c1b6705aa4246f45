"""Tensor2Tensor's Transformer on a problem of its own kind, made small: by its trainer_lib, as its trainer makes it.

Words: a folder, the number of cores.
"""

import os
import sys

import tensorflow.compat.v1 as tf
from tensor2tensor import models  # noqa: F401
from tensor2tensor.data_generators import algorithmic
from tensor2tensor.utils import registry, trainer_lib

from tests.programs.drivers.calls import Calls

FOLDER, CORES = sys.argv[1], int(sys.argv[2])
DATA = os.path.join(FOLDER, "data")


@registry.register_problem
class TinyReverse(algorithmic.AlgorithmicReverseBinary40):
    """Short sequences, few of them."""

    train_length = 8
    dev_length = 8
    train_size = 64
    dev_size = 16
    num_shards = 1


HPARAMS = trainer_lib.create_hparams(
    "transformer_tiny",
    "hidden_size=16,filter_size=16,num_heads=2,batch_size=64,"
    "max_length=16,dropout=0.0,optimizer=true_adam,learning_rate_warmup_steps=4",
    data_dir=DATA,
    problem_name="tiny_reverse",
)
# As create_experiment adds them.
for name, value in (("model_dir", FOLDER), ("train_steps", 8), ("eval_steps", 2)):
    HPARAMS.add_hparam(name, value)
for name in ("schedule", "warm_start_from", "std_server_protocol"):
    HPARAMS.add_hparam(name, None)
PROBLEM = HPARAMS.problem
os.makedirs(DATA, exist_ok=True)
PROBLEM.generate_data(DATA, DATA)


def make():
    config = trainer_lib.create_run_config(
        "transformer",
        model_dir=os.path.join(FOLDER, "model"),
        iterations_per_loop=2,
        num_shards=max(CORES, 1),
        save_checkpoints_steps=100,
        random_seed=1,
        use_tpu=CORES > 0,
        use_tpu_estimator=True,
    )
    return trainer_lib.create_estimator(
        "transformer", HPARAMS, config, use_tpu=CORES > 0, use_tpu_estimator=True
    )


def rows(mode):
    def input_fn(params, config):
        # A problem counts the calls of its input_fn, to give each host its part of the files.
        problem = registry.problem("tiny_reverse")
        return problem.make_estimator_input_fn(mode, HPARAMS)(params, config)

    return input_fn


calls = Calls(make)
calls.train_and_resume(rows(tf.estimator.ModeKeys.TRAIN))
# On cores its evaluation checks whether TensorFlow compiles for XLA, and assumes that it is on a host.
if not CORES:
    calls.evaluate(
        rows(tf.estimator.ModeKeys.EVAL), steps=2, names=["metrics-tiny_reverse/targets/accuracy"]
    )
calls.finish()

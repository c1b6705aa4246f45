"""ALBERT's run_classifier, whose package leaves it to its user to define the flags.

Words: a folder with CoLA's files, the number of cores.
"""

import json
import os
import sys

import tensorflow as tf
from albert import run_classifier

FOLDER, CORES = sys.argv[1], int(sys.argv[2])
flags = tf.flags
for name, value in {
    "albert_config_file": os.path.join(FOLDER, "config.json"),
    "data_dir": FOLDER,
    "gcp_project": None,
    "init_checkpoint": None,
    "master": None,
    "output_dir": os.path.join(FOLDER, "out"),
    "spm_model_file": None,
    "task_name": "cola",
    "tpu_name": "tpu-of-another-time" if CORES else None,
    "tpu_zone": None,
    "vocab_file": os.path.join(FOLDER, "vocab.txt"),
}.items():
    flags.DEFINE_string(name, value, "")
for name in ("do_eval", "do_lower_case", "do_predict", "do_train", "use_pooled_output"):
    flags.DEFINE_bool(name, True, "")
flags.DEFINE_bool("use_tpu", bool(CORES), "")
for name in ("train_batch_size", "eval_batch_size", "predict_batch_size", "max_seq_length"):
    flags.DEFINE_integer(name, 8, "")
flags.DEFINE_integer("iterations_per_loop", 10, "")
flags.DEFINE_integer("num_tpu_cores", max(CORES, 1), "")
flags.DEFINE_integer("save_checkpoints_steps", 20, "")
flags.DEFINE_float("learning_rate", 0.003, "")
flags.DEFINE_float("num_train_epochs", 5.0, "")
flags.DEFINE_float("warmup_proportion", 0.1, "")

with open(flags.FLAGS.albert_config_file, "w") as file:
    config = {"vocab_size": 13, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2}
    config.update(num_attention_heads=2, intermediate_size=32, max_position_embeddings=16)
    json.dump(dict(config, initializer_range=0.1), file)
run_classifier.FLAGS = flags.FLAGS
run_classifier.main(None)
print("CALLS train evaluate predict")

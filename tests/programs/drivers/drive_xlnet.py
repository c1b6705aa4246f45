"""XLNet's run_classifier, whose package leaves it to its user to define the flags.

Words: a folder with IMDB's folders, the number of cores.
"""

import glob
import json
import os
import sys

import sentencepiece
import tensorflow as tf
from absl import flags
from xlnet import run_classifier

FOLDER, CORES = sys.argv[1], int(sys.argv[2])
model = os.path.join(FOLDER, "words")
special = "--unk_id=0 --control_symbols=<cls>,<sep>,<pad>,<mask>,<eod> --user_defined_symbols=<eop>"
texts = ",".join(sorted(glob.glob(os.path.join(FOLDER, "train", "*", "*.txt"))))
sentencepiece.SentencePieceTrainer.Train(
    f"--input={texts} --model_prefix={model} --vocab_size=32 --hard_vocab_limit=false {special}"
)
for name, value in {
    "cls_scope": None,
    "data_dir": FOLDER,
    "decay_method": "poly",
    "eval_split": "dev",
    "gcp_project": None,
    "init": "normal",
    "init_checkpoint": None,
    "master": None,
    "model_config_path": os.path.join(FOLDER, "config.json"),
    "model_dir": os.path.join(FOLDER, "model"),
    "output_dir": os.path.join(FOLDER, "records"),
    "predict_ckpt": None,
    "predict_dir": os.path.join(FOLDER, "predicted"),
    "spiece_model_file": f"{model}.model",
    "summary_type": "last",
    "task_name": "imdb",
    "tpu": "tpu-of-another-time" if CORES else None,
    "tpu_zone": None,
}.items():
    flags.DEFINE_string(name, value, "")
for name, value in {
    "do_eval": True,
    "do_predict": not CORES,
    "do_train": True,
    "eval_all_ckpt": False,
    "is_regression": False,
    "overwrite_data": False,
    "uncased": True,
    "use_bfloat16": False,
    "use_summ_proj": True,
    "use_tpu": bool(CORES),
}.items():
    flags.DEFINE_bool(name, value, "")
for name, value in {
    "clamp_len": -1,
    "eval_batch_size": 8,
    "iterations": 10,
    "max_save": 0,
    "max_seq_length": 16,
    "num_core_per_host": max(CORES, 1),
    "num_hosts": 1,
    "num_passes": 1,
    "predict_batch_size": 8,
    "save_steps": 20,
    "shuffle_buffer": 64,
    "train_batch_size": 8,
    "train_steps": 40,
    "warmup_steps": 4,
}.items():
    flags.DEFINE_integer(name, value, "")
for name, value in {
    "adam_epsilon": 1e-8,
    "clip": 1.0,
    "dropatt": 0.0,
    "dropout": 0.0,
    "init_range": 0.1,
    "init_std": 0.02,
    "learning_rate": 0.005,
    "lr_layer_decay_rate": 1.0,
    "min_lr_ratio": 0.0,
    "predict_threshold": 0.0,
    "weight_decay": 0.0,
}.items():
    flags.DEFINE_float(name, value, "")
flags.DEFINE_bool("use_bfloat", False, "")

flags.FLAGS(sys.argv[:1])
with open(flags.FLAGS.model_config_path, "w") as file:
    sizes = {"d_head": 8, "d_inner": 32, "d_model": 16, "n_head": 2, "n_layer": 2}
    json.dump(dict(sizes, ff_activation="gelu", n_token=32000, untie_r=True), file)
run_classifier.main(None)
step = tf.train.load_checkpoint(flags.FLAGS.model_dir).get_tensor("global_step")
assert step == 40, step
print("CALLS train evaluate" + (" predict" if flags.FLAGS.do_predict else ""))

"""TAPAS's pretraining: a BERT for tables, where the masked words are all one."""

import json
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.programs.running import OLD_MESSAGES
from tfx_tpu_trainer.estimator.hooks import read_eval_metrics

LENGTH = 12
MASKED = {3: 7, 5: 7, 8: 7}
"""Position -> the word that stood there; one word, so a model learns it in a few steps."""
VOCABULARY = 32
_MASK = 4
_TYPES = 3


def write_config(path: pathlib.Path) -> None:
    """Writes a BertConfig without dropout, so cores and host compute the same."""
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": LENGTH,
        # Segments, columns, rows, earlier labels, two ranks, relations.
        "type_vocab_size": [_TYPES] * 7,
        "initializer_range": 0.02,
    }
    path.write_text(json.dumps(config), encoding="utf-8")


def write_examples(path: pathlib.Path, *, rows: int, seed: int) -> None:
    """Writes a TFRecord file of examples as TAPAS makes them of tables."""
    random = np.random.default_rng(seed)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(rows):
            writer.write(_example(random).SerializeToString())


def _example(random: np.random.Generator) -> tf.train.Example:
    words = random.integers(12, VOCABULARY, LENGTH)
    words[list(MASKED)] = _MASK
    types = {
        name: random.integers(0, _TYPES, LENGTH)
        for name in (
            "segment_ids",
            "column_ids",
            "row_ids",
            "prev_label_ids",
            "column_ranks",
            "inv_column_ranks",
            "numeric_relations",
        )
    }
    numbers = {
        "input_ids": words,
        "input_mask": np.ones(LENGTH, np.int64),
        **types,
        "masked_lm_positions": list(MASKED),
        "masked_lm_ids": list(MASKED.values()),
        "next_sentence_labels": [int(random.integers(0, 2))],
    }
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in numbers.items()
    }
    feature["masked_lm_weights"] = tf.train.Feature(
        float_list=tf.train.FloatList(value=[1.0] * len(MASKED))
    )
    return tf.train.Example(features=tf.train.Features(feature=feature))


STEPS = 60
TAPAS = {
    "package": "tapas-table-parsing==0.0.1.dev0",
    "program": "tapas.experiments.tapas_pretraining_experiment",
    "needs": ["tf-slim==1.1.0"],
    "differs": {"cores": "each core clips its own gradients"},
    "environment": OLD_MESSAGES,
}


@pytest.fixture
def pretrain(case, tmp_path):
    """Returns a function that runs the program with more words: its metrics."""
    write_config(tmp_path / "bert_config.json")
    write_examples(tmp_path / "train.tfrecord", rows=160, seed=1)
    write_examples(tmp_path / "eval.tfrecord", rows=32, seed=2)

    def run(*words: str, calls: list[str]) -> dict[str, float]:
        case.run(
            "-m",
            "tapas.experiments.tapas_pretraining_experiment",
            f"--model_dir={tmp_path / 'model'}",
            f"--bert_config_file={tmp_path / 'bert_config.json'}",
            f"--input_file_train={tmp_path / 'train.tfrecord'}",
            f"--input_file_eval={tmp_path / 'eval.tfrecord'}",
            "--compression_type=",
            f"--max_seq_length={LENGTH}",
            f"--max_predictions_per_seq={len(MASKED)}",
            "--train_batch_size=16",
            "--eval_batch_size=8",
            "--num_eval_steps=4",
            f"--num_train_examples={16 * STEPS}",
            "--learning_rate=0.01",
            "--tpu_iterations_per_loop=20",
            *words,
            calls=calls,
        )
        state = tf.train.load_checkpoint(str(tmp_path / "model"))
        assert state.get_tensor("global_step") == STEPS
        metrics = read_eval_metrics(str(tmp_path / "model" / "eval_default"))
        return dict(metrics[STEPS])

    return run


def on_cores(case):
    """Returns the words for cores: the TPU that they name is answered."""
    named = ["--use_tpu", "--tpu_name=tpu-of-another-time", f"--num_tpu_cores={case.cores}"]
    return named if case.cores else []


@pytest.mark.program(**TAPAS)
@pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])
def test_tapas_learns_the_masked_words(case, pretrain):
    metrics = pretrain("--do_train", "--do_eval", *on_cores(case), calls=["train", "evaluate"])
    assert metrics["masked_lm_accuracy"] == 1.0
    # A guess has the logarithm of the vocabulary's size.
    assert metrics["masked_lm_loss"] < math.log(VOCABULARY) / 2


@pytest.mark.program(
    **{**TAPAS, "program": f"{TAPAS['program']}, trained on the host", "proved": False}
)
@pytest.mark.parametrize("place", ["2 cores", "8 cores"])
def test_tapas_evaluates_on_cores_as_on_the_host(case, pretrain):
    on_host = pretrain("--do_train", "--do_eval", calls=[])
    on_cores_too = pretrain("--do_eval", *on_cores(case), calls=["evaluate"])
    assert on_cores_too == pytest.approx(on_host, rel=1e-5)

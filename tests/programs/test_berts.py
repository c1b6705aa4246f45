"""BERT, ALBERT and XLNet: their classifiers, trained on sentences that one word decides."""

from __future__ import annotations

import json
import re

import pytest

from tests.programs.glue_data import LENGTH, PREDICTED, write_cola, write_imdb

STEPS = 40


def _results(path) -> dict[str, float]:
    """What run_classifier writes: `name = value` on each line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


BERT = {"package": "bert-tensorflow==1.0.4", "program": "bert.run_classifier", "edit": "--repair"}


@pytest.mark.program(**BERT)
@pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])
def test_bert_classifies(case, tmp_path):
    classify(case, tmp_path)


@pytest.mark.program(**{**BERT, "edit": "--fix", "fix": ["bert"]})
@pytest.mark.parametrize("place", ["host", "2 cores"])
def test_bert_classifies_once_it_is_fixed(case, tmp_path):
    classify(case, tmp_path)


def classify(case, tmp_path):
    write_cola(tmp_path)
    config = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2}
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config |= {"hidden_act": "gelu", "initializer_range": 0.1}
    (tmp_path / "bert_config.json").write_text(json.dumps(config), encoding="utf-8")
    words = [
        "--task_name=cola",
        f"--data_dir={tmp_path}",
        f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--bert_config_file={tmp_path / 'bert_config.json'}",
        f"--output_dir={tmp_path / 'out'}",
        f"--max_seq_length={LENGTH}",
        "--train_batch_size=8",
        "--eval_batch_size=8",
        "--predict_batch_size=8",
        "--num_train_epochs=5",
        "--learning_rate=0.003",
        "--iterations_per_loop=10",
        "--save_checkpoints_steps=20",
    ]
    if case.cores:
        words += ["--use_tpu", "--tpu_name=tpu-of-another-time", f"--num_tpu_cores={case.cores}"]
    trained = ["--do_train", "--do_eval", "--do_predict"]
    case.run("-m", "bert.run_classifier", *words, *trained, calls=["train", "evaluate", "predict"])
    _check(tmp_path / "out")


def _check(folder) -> None:
    metrics = _results(folder / "eval_results.txt")
    assert metrics["global_step"] == STEPS
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert 0 < metrics["eval_loss"] < 1
    rows = (folder / "test_results.tsv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == PREDICTED
    for row in rows:
        assert sum(map(float, row.split("\t"))) == pytest.approx(1.0, abs=1e-5)


ALBERT = {
    "package": "albert-tensorflow==1.1",
    "program": "albert.run_classifier",
    "edit": "--repair",
    "repaired": ["albert"],
    "needs": ["sentencepiece==0.2.0"],
}


@pytest.mark.program(**ALBERT)
@pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])
def test_albert_classifies(case, tmp_path):
    (tmp_path / "work").mkdir()
    write_cola(tmp_path / "work")
    case.drive("drive_albert")
    _check(tmp_path / "work" / "out")


XLNET = {
    "package": "xlnet-tensorflow==1.1.2",
    "program": "xlnet.run_classifier",
    "edit": "--repair",
    "repaired": ["xlnet"],
    "needs": ["sentencepiece==0.2.0"],
}


@pytest.mark.program(**XLNET)
@pytest.mark.parametrize("place", ["host", "2 cores"])
def test_xlnet_classifies(case, tmp_path):
    (tmp_path / "work").mkdir()
    write_imdb(tmp_path / "work")
    case.drive("drive_xlnet")
    if not case.cores:
        predicted = (tmp_path / "work" / "predicted" / "imdb.tsv").read_text(encoding="utf-8")
        assert re.fullmatch(r"index\tprediction\n(\d+\t(neg|pos)\n)+", predicted)

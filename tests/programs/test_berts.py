"""BERT, ALBERT and XLNet: their classifiers, trained on sentences that one word decides."""

import json
import pathlib
import random
import re

import pytest

WORDS = ["good", "fun", "bad", "dull", "film", "plot", "the", "a"]
LENGTH = 8
TRAINED, EVALUATED, PREDICTED = 64, 16, 10


def sentences(count: int, seed: int) -> list[tuple[int, str]]:
    """Returns labels, 1 for good, and their sentences."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        label = chance.randint(0, 1)
        told = chance.choice(WORDS[:2] if label else WORDS[2:4])
        rows.append((label, f"{told} {chance.choice(WORDS[4:6])} the film"))
    return rows


def write_cola(folder: pathlib.Path) -> None:
    """Writes the files of the task CoLA, and `vocab.txt`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]) + "\n", encoding="utf-8")
    for name, count, seed in (("train", TRAINED, 1), ("dev", EVALUATED, 2)):
        rows = [f"x\t{label}\t*\t{text}\n" for label, text in sentences(count, seed)]
        (folder / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    rows = [f"{number}\t{text}\n" for number, (_, text) in enumerate(sentences(PREDICTED, 3))]
    (folder / "test.tsv").write_text("".join(["index\tsentence\n", *rows]), encoding="utf-8")


def write_imdb(folder: pathlib.Path) -> None:
    """Writes the folders of the task IMDB: a file for each text."""
    for split, count, seed in (("train", TRAINED, 1), ("test", EVALUATED, 2)):
        for number, (label, text) in enumerate(sentences(count, seed)):
            file = folder / split / ("pos" if label else "neg") / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


STEPS = 40


def _results(path) -> dict[str, float]:
    """Returns the results of run_classifier: `name = value` on each line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


# Both classifiers drop a tenth of their last layer, whatever their config says.
DRAWS = {"cores": "each core draws its own dropout and clips its own gradients"}
BERT = {
    "package": "bert-tensorflow==1.0.4",
    "program": "bert.run_classifier",
    "edit": "--repair",
    "differs": DRAWS,
}


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
    "differs": DRAWS,
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
    "differs": {"cores": "each core clips its own gradients"},
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

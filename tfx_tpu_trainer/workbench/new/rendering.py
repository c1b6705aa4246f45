"""Renders decisions into a project's folder with cookiecutter; the folder appears complete."""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cookiecutter.exceptions import CookiecutterException
from cookiecutter.generate import generate_files

from tfx_tpu_trainer._support.whole_files import folder_written_whole
from tfx_tpu_trainer.workbench.new.arguments import ScaffoldError, check_folder, project_name
from tfx_tpu_trainer.workbench.new.decisions import DateFeature, Decisions, Feature
from tfx_tpu_trainer.workbench.new.measuring import Table

_TEMPLATE = Path(__file__).parent / "templates" / "project"
_FOLDER = "project"
_LONGEST_TUPLE = 60
_SHOWN_CLASSES = 20
# How a request gives a column's values and marks a missing one.
_READ: Mapping[str, Callable[[str], Any]] = {"integer": int, "float": float, "string": str}
_MISSING = {"integer": -(2**63), "float": math.nan, "string": ""}


def render(folder: Path, table: Table, decisions: Decisions) -> None:
    """Writes the project atomically; raises ScaffoldError if its folder has appeared meanwhile."""
    target = folder.absolute()
    filled = {"cookiecutter": context(target, table, decisions)}
    try:
        with folder_written_whole(str(target)) as aside:
            # cookiecutter makes its own folder inside the given one.
            generate_files(str(_TEMPLATE), filled, aside, accept_hooks=False)
            made = Path(aside) / _FOLDER
            for path in list(made.iterdir()):
                path.rename(Path(aside) / path.name)
            made.rmdir()
            if not decisions.dates:
                (Path(aside) / "transform" / "dates.py").unlink()
            if table.source.copied_for:
                (Path(aside) / "data").mkdir()
                shutil.copyfile(table.source.path, Path(aside) / "data" / table.source.path.name)
            check_folder(folder)
    except OSError as error:
        raise ScaffoldError(
            f"{folder} can't be written ({error.strerror or error}): give a folder that you may write to"
        ) from None
    except CookiecutterException as error:
        raise ScaffoldError(
            f"{folder} can't be rendered ({error}): reinstall tfx-tpu-trainer"
        ) from error


def context(target: Path, table: Table, decisions: Decisions) -> dict[str, Any]:
    """Returns the templates' variables: names, and literals of Python and YAML."""
    label, training = decisions.label, decisions.training
    source = table.source
    return {
        "folder": _FOLDER,
        "py": "py",
        "name": project_name(target),
        "data_file": " ".join(source.path.name.split()),
        "kind": source.kind,
        "classes": list(label.classes),
        "copied_for": ", ".join(source.copied_for),
        "schema": table.schema,
        "request": json.dumps(request(table, decisions), ensure_ascii=False, indent=2),
        "columns": {
            "label": _text(label.name),
            "label_comment": _prose(label.name),
            "label_key": label.key,
            "label_mean": repr(label.mean),
            "label_deviation": repr(label.deviation),
            "integers": label.integers,
            "classes": _tuple([_literal(each) for each in label.classes]),
            "shares": _tuple([f"{share:.6g}" for share in label.shares]),
            "classes_comment": ", ".join(
                f"`{_prose(str(each))}`" for each in label.classes[:_SHOWN_CLASSES]
            )
            + ", ..." * (len(label.classes) > _SHOWN_CLASSES),
            "rows": f"{source.rows:,}",
            "numbers": _dict({each.name: _text(each.key) for each in decisions.numbers}),
            "words": _dict({each.name: _text(each.key) for each in decisions.words}),
            "has_dates": bool(decisions.dates),
            "dates": _dict({each.name: _dates(each) for each in decisions.dates}),
            "with_gaps": _tuple(
                [_text(each.key) for each in decisions.numbers if each.missing]
                + [_text(f"{each.key}_days") for each in decisions.dates if each.missing]
            ),
            "most_words": decisions.vocabulary.most,
            "fewest_rows": decisions.vocabulary.fewest_rows,
            "crosses": _tuple([f"({_text(one)}, {_text(two)})" for one, two in decisions.crosses]),
            "dropped": _dict({name: _text(why) for name, why in decisions.dropped.items()}),
            "table": [
                {key: _prose(value).replace("|", "\\|") for key, value in row.items()}
                for row in column_table(decisions)
            ],
        },
        "config": {
            "data_folder": _text(str(target / "data" if source.copied_for else source.path.parent)),
            "data_file": _text(source.path.name),
            "steps": training.steps,
            "eval_every_steps": training.eval_every_steps,
            "batch_size": training.batch_size,
            "eval_batch_size": 512,
            "hidden_units": list(training.hidden_units),
            "dropout": training.dropout,
            "loss_to_beat": math.floor(label.loss_to_beat * 1000) / 1000,
        },
    }


def request(table: Table, decisions: Decisions) -> dict[str, Any]:
    """Returns a TensorFlow Serving REST request with a row of the data, for the model's `predict_raw`."""
    types = {column.name: column.type for column in table.columns}
    names = [each.name for each in decisions.numbers]
    names += [each.name for each in decisions.dates]
    names += [each.name for each in decisions.words]
    row = {
        name: _MISSING[types[name]]
        if (value := table.source.example.get(name)) is None
        else _READ[types[name]](value)
        for name in names
    }
    return {"signature_name": "predict_raw", "instances": [row]}


def column_table(decisions: Decisions) -> list[dict[str, str]]:
    """Describes the use of each column: label, numbers, words, and those left out."""
    label = decisions.label
    kinds = {0: "a quantity", 2: "two classes"}
    what = kinds.get(len(label.classes), f"{len(label.classes)} classes")
    rows = [{"name": label.name, "what": "label", "why": what}]
    for each in decisions.numbers:
        gaps = ", some missing" if each.missing else ""
        rows.append({"name": each.name, "what": "number", "why": f"numbers{gaps}"})
    rows += [
        {"name": each.name, "what": "date", "why": _calendar(each)} for each in decisions.dates
    ]
    rows += [{"name": each.name, "what": "word", "why": _words(each)} for each in decisions.words]
    rows += [
        {"name": name, "what": "left out", "why": why} for name, why in decisions.dropped.items()
    ]
    return rows


def _words(feature: Feature) -> str:
    many = "many" if feature.values is None else f"{feature.values:,}"
    return f"{many} different values{', some missing' if feature.missing else ''}"


def _calendar(feature: DateFeature) -> str:
    gaps = ", some missing" if feature.missing else ""
    order = feature.order.replace("-", " ")
    return f"dates, {order}, as numbers: {', '.join(('days', *feature.parts))}{gaps}"


def _prose(text: str) -> str:
    """Returns a name on one line, escaped for Markdown and docstrings."""
    return re.sub(r"[\x00-\x1f\x7f\\`\"]", "?", text)


def _text(text: str) -> str:
    """Returns a text literal that is valid in Python and YAML."""
    return re.sub(
        r"[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        json.dumps(text, ensure_ascii=False),
    )


def _literal(value: str | int) -> str:
    return _text(value) if isinstance(value, str) else repr(value)


def _tuple(literals: list[str]) -> str:
    if len(literals) == 1:
        return f"({literals[0]},)"
    one_line = f"({', '.join(literals)})"
    if len(one_line) <= _LONGEST_TUPLE or not literals:
        return one_line
    return "".join(["(\n", *(f"    {each},\n" for each in literals), ")"])


def _dates(feature: DateFeature) -> str:
    values = [*map(_text, (feature.key, feature.order, feature.first_day))]
    return f"Dates({', '.join([*values, _tuple([*map(_text, feature.parts)])])})"


def _dict(literals: Mapping[str, str]) -> str:
    if not literals:
        return "{}"
    lines = (f"    {_text(key)}: {literal},\n" for key, literal in literals.items())
    return "".join(["{\n", *lines, "}"])

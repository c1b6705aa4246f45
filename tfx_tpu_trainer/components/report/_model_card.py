"""Writes a model card in the schema of Google's Model Card Toolkit, with the questions that only people can answer.

The keys are those of the toolkit's JSON schema, version 0.0.2, plus `confidence_interval` of its later releases.
Questions that no file answers are marked `OPEN`.
"""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import jinja2
import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.components.report._charts import number_text
from tfx_tpu_trainer.components.report._run_data import RunData

CARD_FILE, TEXT_FILE = "model_card.json", "model_card.md"
OPEN = "[open] "
"""Marks a question that is still open."""

SCHEMA_VERSION = "0.0.2"

_MARKUP = frozenset("\\`*_{}[]<>#|~!&")


def make_model_card(run: RunData, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Fills in a model card.

    Args:
        run: The data of the training.
        answers: A card in which people have answered questions; their answers are kept. Defaults to `None`: there is
            none.

    Returns:
        The card, as JSON values, without metrics that are not finite.

    Raises:
        ValueError: If an answer has another form than its question.
    """
    written = datetime.datetime.fromtimestamp(run.written, tz=datetime.timezone.utc)
    asked: dict[str, dict[str, Any]] = {
        "model_details": {
            "overview": _open("What does the model do, in one line?"),
            "documentation": _open("What should users of the model know about it?"),
            "owners": [
                {"name": _open("Who owns the model?"), "contact": _open("How can they be reached?")}
            ],
            "licenses": [{"custom_text": _open("Under which license may the model be used?")}],
            "references": [{"reference": _open("Where can one read more about it?")}],
            "citations": [{"style": "", "citation": _open("How should this card be cited?")}],
        },
        "considerations": {
            "users": [{"description": _open("Who are the intended users?")}],
            "use_cases": [{"description": _open("What should it be used for, and what not?")}],
            "limitations": [{"description": _open("On which data does it perform badly?")}],
            "tradeoffs": [{"description": _open("Which trade-offs were made?")}],
            "ethical_considerations": [
                {
                    "name": _open("Whom might its errors harm?"),
                    "mitigation_strategy": _open("What is done about that?"),
                }
            ],
        },
    }
    for section, questions in asked.items():
        given = (answers or {}).get(section)
        for key in questions:
            if isinstance(given, Mapping) and key in given:
                _check_answer(f"{section}.{key}", given[key], questions[key])
                questions[key] = given[key]
    return {
        "schema_version": SCHEMA_VERSION,
        "model_details": {
            "name": run.title,
            "version": {
                "name": run.lineage.identity or "",
                "date": f"{written:%Y-%m-%d}",
                "diff": "",
            },
            **asked["model_details"],
        },
        "model_parameters": {
            "model_architecture": _architecture(run),
            "data": [
                {"name": name, "description": where}
                for name, where in sorted(run.lineage.inputs.items())
            ],
            **_formats(run),
        },
        "quantitative_analysis": {"performance_metrics": _metrics(run)},
        "considerations": asked["considerations"],
    }


def _open(question: str) -> str:
    return OPEN + question


def _check_answer(name: str, given: Any, asked: Any) -> None:
    """Raises ValueError unless an answer has the form of its question."""
    if isinstance(asked, str):
        fits, form = isinstance(given, str), "a string"
    else:
        form = f"a list of objects with strings, such as {json.dumps(asked)}"
        fits = isinstance(given, list) and all(
            isinstance(part, Mapping) and all(isinstance(value, str) for value in part.values())
            for part in given
        )
    if not fits:
        raise ValueError(f"{name} of the model card is {given!r}; give {form}.")


def _architecture(run: RunData) -> str:
    parameters = sum(layer.parameters for layer in run.layers)
    layers = ", ".join(f"{layer.name} ({layer.parameters:,})" for layer in run.layers[:20])
    return f"{parameters:,} parameters, by layer: {layers}" if run.layers else ""


def _formats(run: RunData) -> dict[str, str]:
    signatures = [
        signature
        for graph in (run.exported.meta_graphs if run.exported else ())
        for signature in graph.signatures
        if graph.tags == ("serve",)
    ]

    def described(side: str) -> str:
        return "\n".join(
            f"{signature.name}: "
            + ", ".join(f"{name} {kind}" for name, kind in getattr(signature, side).items())
            for signature in signatures
        )

    return {"input_format": described("inputs"), "output_format": described("outputs")}


def _metrics(run: RunData) -> list[dict[str, Any]]:
    if run.measured is None:
        return []
    found = [
        {"type": name, "value": value, **_interval(run.measured.intervals.get(name))}
        for name, value in sorted(run.measured.metrics.items())
    ]
    found += [
        {"type": name, "value": value, "slice": one.name}
        for one in run.measured.slices
        for name, value in sorted(one.metrics.items())
    ]
    return [metric for metric in found if math.isfinite(metric["value"])]


def _interval(ends: tuple[float, float] | None) -> dict[str, Any]:
    if ends is None:
        return {}
    low, high = ends
    return {"confidence_interval": {"lower_bound": low, "upper_bound": high}}


def card_text(card: Mapping[str, Any]) -> str:
    """Renders a model card as Markdown; open questions come first."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfx_tpu_trainer.components.report", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # The `text` filter escapes Markdown instead.
        autoescape=False,
    )
    environment.filters |= {"number": number_text, "text": _as_text}
    return environment.get_template("model_card.md.j2").render(
        card=card, questions=sorted(_questions(card)), open_mark=OPEN
    )


def _as_text(value: str) -> str:
    return "".join(f"\\{char}" if char in _MARKUP else char for char in value).replace("\n", "<br>")


def _questions(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value[len(OPEN) :]] if value.startswith(OPEN) else []
    if not isinstance(value, (Mapping, list)):
        return []
    parts = value.values() if isinstance(value, Mapping) else value
    return [question for part in parts for question in _questions(part)]


def write_model_card(run: RunData, folder: str) -> str:
    """Writes `model_card.json` and `model_card.md`; each appears whole or not at all.

    The answers in an existing `model_card.json` are kept.

    Args:
        run: The data of the training.
        folder: The folder to write into, created if missing; any path that `tf.io.gfile` supports.

    Returns:
        The Markdown file's path.

    Raises:
        ValueError: If an existing `model_card.json`, which may contain answers, can't be read, or has answers of
            another form.
        OSError: If they can't be written.
    """
    path = os.path.join(folder, CARD_FILE)
    answers = None
    if tf.io.gfile.exists(path):
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                answers = json.loads(file.read())
        except (ValueError, RecursionError, tf.errors.OpError) as error:
            raise ValueError(
                f"{path} can't be read, and may contain answers: {error}. Repair it, or move it "
                "away."
            ) from error
        if not isinstance(answers, dict):
            raise ValueError(
                f"{path} is not a model card but a {type(answers).__name__}: move it away."
            )
    card = make_model_card(run, answers)
    write_whole(path, json.dumps(card, indent=2, allow_nan=False) + "\n")
    text = os.path.join(folder, TEXT_FILE)
    write_whole(text, card_text(card))
    return text

from __future__ import annotations

import dataclasses
import json
import math

import jsonschema
import pytest

from tests.components.report.runs import run_of
from tfx_tpu_trainer.components.report._model_card import (
    OPEN,
    card_text,
    make_model_card,
    write_model_card,
)

_TEXT = {"type": "string"}


def _list_of(*keys):
    return {"type": "array", "items": {"type": "object", "properties": dict.fromkeys(keys, _TEXT)}}


def _object(**properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


# The form of the Model Card Toolkit's schema, version 0.0.2, by its keys and their types.
_SCHEMA = _object(
    schema_version=_TEXT,
    model_details=_object(
        **dict.fromkeys(("name", "overview", "documentation"), _TEXT),
        version=_object(name=_TEXT, date=_TEXT, diff=_TEXT),
        owners=_list_of("name", "contact"),
        licenses=_list_of("identifier", "custom_text"),
        references=_list_of("reference"),
        citations=_list_of("style", "citation"),
    ),
    model_parameters=_object(
        **dict.fromkeys(("model_architecture", "input_format", "output_format"), _TEXT),
        data=_list_of("name", "link", "description"),
    ),
    quantitative_analysis=_object(
        performance_metrics={
            "type": "array",
            "items": _object(
                type=_TEXT,
                value={"type": "number"},
                slice=_TEXT,
                confidence_interval=_object(
                    lower_bound={"type": "number"}, upper_bound={"type": "number"}
                ),
            ),
        }
    ),
    considerations=_object(
        users=_list_of("description"),
        use_cases=_list_of("description"),
        limitations=_list_of("description"),
        tradeoffs=_list_of("description"),
        ethical_considerations=_list_of("name", "mitigation_strategy"),
    ),
)


def _measured(**changes):
    run = run_of()
    return dataclasses.replace(run, measured=dataclasses.replace(run.measured, **changes))


def test_a_card_has_the_toolkits_form_and_the_runs_numbers():
    card = make_model_card(_measured(intervals={"accuracy": (0.87, 0.9)}))
    jsonschema.validate(card, _SCHEMA)
    metrics = card["quantitative_analysis"]["performance_metrics"]
    assert {"type": "loss", "value": 0.25} in metrics
    assert {
        "type": "accuracy",
        "value": 0.8852195143699646,
        "confidence_interval": {"lower_bound": 0.87, "upper_bound": 0.9},
    } in metrics
    assert {"type": "accuracy", "value": 0.5, "slice": "accuracy"} in metrics
    assert card["model_parameters"]["model_architecture"] == (
        "1,234 parameters, by layer: accuracy (1,234)"
    )
    assert card["model_parameters"]["input_format"] == "accuracy: accuracy string [?]"
    assert card["model_details"]["version"]["date"] == "1970-01-01"


def test_what_only_people_know_is_open_and_counted():
    card = make_model_card(run_of())
    assert card["considerations"]["users"] == [
        {"description": OPEN + "Who are the intended users?"}
    ]
    text = card_text(card)
    assert "**13 questions are open**" in text
    # Each in its place, and in the line that names the mark.
    assert text.count("\\[open\\]") == 13 + 1


def test_answers_stay_when_the_card_is_made_again(tmp_path):
    path = tmp_path / "model_card.json"
    write_model_card(run_of(), str(tmp_path))
    card = json.loads(path.read_text())
    card["considerations"]["users"] = [{"description": "cab drivers"}, {"description": "us"}]
    card["model_details"]["owners"][0]["name"] = "me"
    card["model_details"]["name"] = "nobody asked for that"
    path.write_text(json.dumps(card))
    text = write_model_card(_measured(metrics={"loss": 0.125}), str(tmp_path))
    again = json.loads(path.read_text())
    assert again["considerations"]["users"] == card["considerations"]["users"]
    assert again["model_details"]["owners"] == card["model_details"]["owners"]
    assert again["model_details"]["name"] == "run accuracy"
    values = {
        one["type"]: one["value"] for one in again["quantitative_analysis"]["performance_metrics"]
    }
    assert values["loss"] == 0.125
    with open(text, encoding="utf-8") as file:
        written = file.read()
    assert "- cab drivers\n- us\n" in written
    assert "**11 questions are open**" in written


def test_metrics_that_are_not_finite_are_left_out():
    card = make_model_card(_measured(metrics={"a": math.nan, "b": math.inf, "c": 1.0}, slices=()))
    found = card["quantitative_analysis"]["performance_metrics"]
    assert found == [{"type": "c", "value": 1.0}]
    json.dumps(card, allow_nan=False)


def test_markup_in_names_stays_text():
    text = card_text(make_model_card(run_of("<b>|`_*")))
    assert "| \\<b\\>\\|\\`\\_\\* |" in text
    assert "<b>" not in text


def test_a_card_of_a_run_of_which_nothing_is_known():
    run = run_of(measured=None, layers=(), exported=None)
    card = make_model_card(run)
    jsonschema.validate(card, _SCHEMA)
    assert card["quantitative_analysis"]["performance_metrics"] == []
    assert "## Metrics" in card_text(card)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", r"model_card\.json can't be read, and may contain answers: .* Repair it, or move it"),
        ("[" * 100_000, r"model_card\.json can't be read, and may contain answers: "),
        ("[]", r"is not a model card but a list: move it away"),
        (
            '{"considerations": {"users": "us"}}',
            r"considerations\.users of the model card is 'us'; give a list of objects",
        ),
        (
            '{"considerations": {"users": [{"description": 3}]}}',
            r"considerations\.users of the model card is \[\{'description': 3\}\]; give a list",
        ),
        (
            '{"model_details": {"overview": []}}',
            r"model_details\.overview of the model card is \[\]; give a string",
        ),
    ],
)
def test_a_card_that_may_hold_answers_is_not_overwritten(tmp_path, content, says):
    path = tmp_path / "model_card.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=says):
        write_model_card(run_of(), str(tmp_path))
    assert path.read_text() == content
    assert not (tmp_path / "model_card.md").exists()

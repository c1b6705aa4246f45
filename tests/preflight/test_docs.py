"""The listings of docs/preflight.md run as they stand."""

from __future__ import annotations

import json
import pathlib
import re

from tfx_tpu_trainer.components.user_module._preflight_model import FeatureSpec
from tfx_tpu_trainer.workbench.cli.preflight import preflight as command

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "preflight.md"


def _listings(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_listing_makes_a_report(capsys):
    (listing,) = _listings("python")
    names: dict[str, object] = {"__name__": "listing"}
    exec(compile(listing, str(DOCS), "exec"), names)
    assert names["report"].ok
    need, seconds, part = capsys.readouterr().out.split()
    assert int(need) > 4 * 784 * 128 * 3 and float(seconds) > 0
    assert part in ("compute", "memory", "collectives")


def test_the_feature_spec_is_one():
    (listing,) = _listings("json")
    assert FeatureSpec.from_json(json.loads(listing)).label_key == "liked"


def test_every_option_is_told_of_and_no_other():
    told = set(re.findall(r"`--(\w+)", DOCS.read_text(encoding="utf-8")))
    assert told == {option.opts[0].removeprefix("--") for option in command.params}

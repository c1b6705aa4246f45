"""What is read of a results.json."""

from __future__ import annotations

import json
import math

from benchmarks.results import read_rounds, rounds_of
from benchmarks.run import report_of
from tests.benchmarks.test_summary import NAMES, ROUNDS


def _written(path, model, threads):
    path.write_text(
        report_of({model: ROUNDS}, NAMES, {"threads": threads}).json(), encoding="utf-8"
    )
    return path


def test_the_rounds_read_are_those_written(tmp_path):
    path = _written(tmp_path / "results.json", "mlp", 2)
    found = rounds_of(json.loads(path.read_text(encoding="utf-8")))["mlp"]
    assert [list(each.measured) for each in found] == [["real", "ours"]] * 3
    assert found[1] == ROUNDS[1]
    assert math.isnan(found[0].measured["ours"].eval_examples_per_second)


def test_models_come_in_the_benchmarks_order_whatever_the_order_of_the_files(tmp_path):
    paths = [_written(tmp_path / f"{model}.json", model, 2) for model in ("cnn", "mlp")]
    rounds, conditions = read_rounds(paths)
    assert list(rounds) == ["mlp", "cnn"]
    assert conditions == [{"threads": 2}] * 2

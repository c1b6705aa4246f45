"""Compares exported models: the same answers, and the table of results."""

import io
import json

import pytest
from rich.console import Console

from benchmarks import served_models, serving
from benchmarks.serving import Served
from tests.sweeps import mostly_swept

RESULTS = [
    Served(
        model="mlp", way="session", batch_size=1, ours=(900.0, 1200.0, 1000.0), keras=(800.0, 800.0)
    ),
    Served(model="cnn", way="Python", batch_size=32, ours=(50_000.0,), keras=(100_000.0,)),
]


def test_a_ratio_is_that_of_the_medians():
    assert [each.ratio for each in RESULTS] == [1.25, 0.5]


def test_the_report():
    lines = serving.markdown(RESULTS).splitlines()
    assert lines[0].startswith("## ")
    assert "| MLP | session | 1 | 1,000 | 800 | 1.25x |" in lines
    assert "| CNN | Python | 32 | 50,000 | 100,000 | 0.50x |" in lines
    console = Console(file=io.StringIO(), width=120)
    console.print(serving.table(RESULTS))
    assert "1.25x" in console.file.getvalue()
    assert [each["ratio"] for each in json.loads(serving.as_json(RESULTS))] == [1.25, 0.5]


@pytest.mark.matrix
@mostly_swept("model", ["mlp", "cnn", "wide_and_deep"], kept=["mlp"])
def test_ours_and_keras_are_the_same_model(model, tmp_path):
    batch = served_models.batch(model, 3)
    answers = [
        call_of(path, batch)()
        for path in served_models.export_both(model, str(tmp_path))
        for call_of in served_models.WAYS.values()
    ]
    for answer in answers:
        assert set(answer) == {"class_id", "probability"}
        served_models.check_same(answers[0], answer)


@pytest.mark.matrix
def test_it_is_measured_in_turns_and_of_both_ways(monkeypatch):
    monkeypatch.setattr(serving, "_SEGMENT_SECONDS", 0.02)
    results = serving.measure("mlp", segments=2, batch_sizes=(1, 32))
    found = [(each.way, each.batch_size) for each in results]
    assert found == [("session", 1), ("session", 32), ("Python", 1), ("Python", 32)]
    for each in results:
        assert len(each.ours) == len(each.keras) == 2
        assert min(*each.ours, *each.keras) > 0


@pytest.mark.matrix
def test_a_model_that_fails_is_named_and_left_out():
    console = Console(file=io.StringIO(), width=120)
    found = serving.measure_all(["mlp"], segments=1, threads=1, timeout=0.01, console=console)
    assert found == []
    assert "serving mlp failed: took longer than 0.01 s" in console.file.getvalue()

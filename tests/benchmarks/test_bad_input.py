"""Tests what the benchmarks' commands reject before they measure anything."""

import sys

import pytest
from click.testing import CliRunner

from benchmarks import processes, run, taxi_quality
from tests.bad_input import case, row
from tfx_tpu_trainer.workbench.project.project import find_pipeline


@pytest.mark.parametrize(
    "words",
    [
        case("runners", f"`python -m benchmarks.run {' '.join(words)}`", says, values=(words,))
        for words, says in (
            (["--models=mnist"], "Invalid value for '--models': 'mnist' is not one of "),
            (["--contenders=torch"], "Invalid value for '--contenders': 'torch' is not one of "),
            (["--rounds=0"], "Invalid value for '--rounds': 0 is not in the range x>=1"),
            (["--timeout=nan"], "Invalid value for '--timeout': 'nan' is not a valid integer"),
            (
                ["--output=/dev/null/a"],
                "--output '/dev/null/a' can't be created (Not a directory); name",
            ),
        )
    ],
)
def test_a_benchmark_that_cannot_be_is_refused(words, refused):
    refused.output(CliRunner().invoke(run.main, ["--contenders=bare", *words]))


@pytest.mark.skipif(bool(processes.gpus_of(sys.executable)), reason="this machine has a GPU")
@row(
    "runners",
    "`python -m benchmarks.run --gpu` without one",
    "finds no GPU on this machine; leave --gpu out",
)
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_measured(refused):
    refused.output(CliRunner().invoke(run.main, ["--contenders=real,bare", "--gpu"]))


def test_a_gpu_is_seen_where_it_is_asked_for(monkeypatch):
    # As the Makefile sets it.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options = {"threads": 1, "legacy_keras": True}
    assert "CUDA_VISIBLE_DEVICES" not in processes.environment_of(**options, gpu=True)
    assert processes.environment_of(**options)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("words", "config"),
    [
        case(
            "runners", f"`python -m benchmarks.taxi_quality` {given}", *says, values=(words, config)
        )
        for given, words, config, *says in (
            (
                "`--seeds=0`",
                ["--seeds=0"],
                None,
                "Invalid value for '--seeds': 0 is not in the range",
            ),
            ("of a root without a run", [], None, "no run below ", "; first: make demo"),
            (
                "of a run without its config",
                [],
                "{",
                "config.json is not a config of the taxi pipeline (",
                "run it",
            ),
            (
                "of a run without metadata",
                [],
                "whole",
                "can't be read as ML Metadata: ",
                "give the --root",
            ),
        )
    ],
)
def test_a_run_that_cannot_be_compared_is_refused(tmp_path, monkeypatch, words, config, refused):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    if config is not None:
        file = tmp_path / "logs" / "1" / "config.json"
        file.parent.mkdir(parents=True)
        whole = find_pipeline("taxi").config()
        file.write_text(whole.model_dump_json() if config == "whole" else config)
    words = [*words, "--root", str(tmp_path)]
    refused.output(CliRunner().invoke(taxi_quality.main, words))

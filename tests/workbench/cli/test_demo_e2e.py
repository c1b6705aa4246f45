"""inspect and preflight on what the demo pipelines leave behind; `make preflight` is of what a run has."""

import json
import pathlib
import shlex
import subprocess

import pytest
from click.testing import CliRunner

from tests.pipeline_runs import PipelineRun
from tfx_tpu_trainer.components.user_module._preflight_model import FeatureSpec
from tfx_tpu_trainer.preflight._report_files import read_json
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline

pytestmark = pytest.mark.e2e


def test_taxi_is_checked_and_warmed_up(taxi_run: PipelineRun):
    _is_checked_and_warmed_up(taxi_run)


def test_digits_is_checked_and_warmed_up(digits_run: PipelineRun):
    _is_checked_and_warmed_up(digits_run)


def _is_checked_and_warmed_up(run: PipelineRun) -> None:
    model = run.output_folder("TpuTrainer", "model")
    ended = CliRunner().invoke(main, ["inspect", str(model), "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["check"]["passed"]
    outcomes = {check["name"]: check["outcome"] for check in found["check"]["checks"]}
    assert outcomes == {
        "serve: answers as the estimator predicts": "passed",
        "serve, tpu: loads": "passed",
        "serve, tpu: answers as serve does": "passed",
        "serve, tpu: all of the model on the TPU": "passed",
        "serve, tpu: compiles": "passed",
    }
    assert found["warmup"] == [{"signature": "serving_default", "rows": 1, "records": 1}]
    assert found["meta_graphs"][1]["ops"]["refused_by_tpu"] == []


REPOSITORY = pathlib.Path(__file__).parents[3]
SPEC = REPOSITORY / "pipelines" / "taxi" / "feature_spec.json"


def _made_options() -> dict[str, str]:
    """The options that `make preflight` gives."""
    printed = subprocess.run(
        ["make", "-n", "preflight"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    command = next(line for line in printed.replace("\\\n", " ").splitlines() if "--module" in line)
    words = shlex.split(command)
    words = words[words.index("preflight") + 1 :]
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2])}


def test_make_preflight_has_the_params_of_the_config():
    taxi = find_pipeline("taxi")
    options, config = _made_options(), load_config(taxi.config_class(), taxi.config_file)
    assert options["module"] == config.trainer.module
    assert json.loads(options["params"]) == {
        **config.model.model_dump(mode="json"),
        "decay_steps": config.trainer.train_steps,
    }
    assert pathlib.Path(REPOSITORY, options["feature_spec"]) == SPEC


@pytest.mark.e2e
def test_the_feature_spec_is_what_transform_puts_out(taxi_run: PipelineRun):
    transform = taxi_run.output_folder("Transform", "transform_graph")
    assert FeatureSpec.of_transform(str(transform), label_key="big_tip") == FeatureSpec.read(
        str(SPEC)
    )


@pytest.mark.e2e
def test_a_run_s_own_transform_output_and_export(taxi_run: PipelineRun, tmp_path: pathlib.Path):
    out = tmp_path / "report.json"
    given = {
        "module_file": REPOSITORY / "pipelines" / "taxi" / "model.py",
        "transform_output": taxi_run.output_folder("Transform", "transform_graph"),
        "label_key": "big_tip",
        "params": _made_options()["params"],
        "saved_model": taxi_run.output_folder("TpuTrainer", "model"),
        "steps": "predict,serve",
        "tpu": "v5e:1x1",
        "batch_size": 64,
        "json": out,
    }
    options = [f"--{name}={value}" for name, value in given.items()]
    ended = CliRunner().invoke(main, ["preflight", *options])
    assert ended.exit_code == 0, ended.output
    predict, serve = read_json(str(out)).steps
    assert (predict.name, serve.name) == ("predict", "serve:serving_default")
    assert predict.parameter_count == serve.parameter_count > 10_000
    assert predict.flops == pytest.approx(serve.flops, rel=0.1)

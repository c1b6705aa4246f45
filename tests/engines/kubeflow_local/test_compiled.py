"""What we compile for Kubeflow Pipelines on the local engine of Kubeflow's own SDK; its containers are processes."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tfx import v1 as tfx

from pipelines.taxi.config import Config
from pipelines.taxi.data import prepare_data
from tests.components.clusters.test_pipeline_spec import SETTINGS
from tests.components.evaluation import thresholds as t
from tests.components.trainer.gate_producers import produce_model
from tfx_tpu_trainer.components import EvalMetricsGate, LastBlessedModel
from tfx_tpu_trainer.components.clusters._compiling import compile_pipeline
from tfx_tpu_trainer.components.clusters._pipeline_spec import executor_config
from tfx_tpu_trainer.components.clusters._pods import PodSettings
from tfx_tpu_trainer.hardware import TpuSpec

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".make" / "kubeflow" / "bin" / "python"
# Without a word on the workers' code, TFX packs itself up for each job.
BEAM = "beam_args=[--runner=DirectRunner, --direct_running_mode=in_memory, --sdk_container_image=of-this-process]"
SECONDS = 1800


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that has ended.

    Attributes:
        code: The exit code of the engine's process.
        said: Its output, with the logs of the tasks.
        folder: The folder of its tasks' outputs.
    """

    code: int
    said: str
    folder: Path

    def metadata(self, key: str, *, having: str) -> dict[str, Any]:
        """Returns the properties of the only output with a key, such as `blessing`, and a given property."""
        written = [
            json.loads(path.read_text()) for path in self.folder.rglob("executor_output.json")
        ]
        found = [
            one["artifacts"][key]["artifacts"][0] for one in written if key in one["artifacts"]
        ]
        (metadata,) = (each["metadata"] for each in found if having in each["metadata"])
        return metadata

    @property
    def verdict(self) -> str:
        """The gate's; the stock Evaluator's blessing has none."""
        return self.metadata("blessing", having="verdict")["verdict"]


def _run(pipeline: Path, folder: Path) -> Ended:
    program = Path(__file__).with_name("run_compiled.py")
    command = [PYTHON, program, pipeline, folder, Path(sys.executable).parent, ROOT]
    ended = subprocess.run(
        list(map(str, command)),
        cwd=pipeline.parent,
        env={key: text for key, text in os.environ.items() if key != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, folder)


@pytest.fixture(scope="module", autouse=True)
def version(note) -> str:
    """The engine's version."""
    if not PYTHON.exists():
        missing = (
            "Kubeflow's local engine: not run; kfp's newest version is missing, which `make test-engines` puts into "
            "its own environment, from requirements/kubeflow.lock"
        )
        note(missing)
        pytest.skip(missing)
    asked = [str(PYTHON), "-c", "import kfp; print(kfp.__version__)"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    note(f"Kubeflow's local engine, kfp {told}, with processes as containers")
    return told


def test_what_pods_need_is_what_the_newest_kfp_kubernetes_reads() -> None:
    configs = [executor_config(PodSettings(**settings), None) for settings, _ in SETTINGS]
    configs.append(executor_config(PodSettings(), TpuSpec.parse("v5e:2x4", spot=True)))
    program = Path(__file__).with_name("read_configs.py")
    told = json.dumps(configs)
    read = subprocess.run(
        [PYTHON, program], input=told, capture_output=True, text=True, timeout=300, check=False
    )
    assert read.returncode == 0, read.stderr[-3000:]
    assert json.loads(read.stdout) == configs
    assert "tolerations" in told and "podMetadata" in told and "nodeSelector" in told


def test_it_ends_at_a_planted_resolver(tmp_path) -> None:
    # That of the latest blessed model becomes two tasks, which this engine begins in either order.
    resolver = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestArtifactStrategy,
        model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
    ).with_id("latest")
    pipeline = tfx.dsl.Pipeline("planted", str(tmp_path / "root"), components=[resolver])
    # For Kubeflow Pipelines, compile_pipeline rejects it.
    compile_pipeline(pipeline, image="r/p:1", backend="vertex").write(tmp_path / "planted.yaml")
    ended = _run(tmp_path / "planted.yaml", tmp_path / "out")
    assert ended.code != 0
    assert "Got unknown spec in ExecutorSpec" in ended.said, ended.said[-3000:]


def test_the_second_run_of_a_gate_finds_the_firsts_model_by_the_pointer(tmp_path) -> None:
    pointer = str(tmp_path / "gate" / "blessed.json")

    def run(accuracy: float) -> tuple[str, str]:
        """Returns the verdict, and what the pointer leads to then."""
        producer = produce_model(accuracy=accuracy)
        baseline = LastBlessedModel(pointer=pointer)
        gate = EvalMetricsGate(
            model=producer.outputs["model"],
            evaluation=producer.outputs["evaluation"],
            baseline_model=baseline.outputs["model"],
            eval_config=t.config(accuracy=t.change(-0.01, value_lower=0.7)),
            pointer=pointer,
        )
        nodes = [producer, baseline, gate]
        pipeline = tfx.dsl.Pipeline("gate", str(tmp_path / "root"), components=nodes)
        file = tmp_path / "gate.yaml"
        compile_pipeline(pipeline, image="r/p:1", backend="kubeflow").write(file)
        ended = _run(file, tmp_path / f"out-{accuracy}")
        assert ended.code == 0, ended.said[-5000:]
        return ended.verdict, json.loads(Path(pointer).read_text())["uri"]

    verdict, first = run(0.8)
    assert verdict.startswith("blessed (first model")
    verdict, second = run(0.81)
    assert "accuracy is 0.81, the baseline's 0.8" in verdict
    assert second != first


# Ten containers of TFX each: minutes.
@pytest.mark.sweep
@pytest.mark.timeout(2 * SECONDS)
def test_the_second_run_of_the_taxi_pipeline_finds_the_firsts_model_as_its_baseline(
    tmp_path,
) -> None:
    compiled = tmp_path / "taxi.yaml"
    command = [sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main", "compile", "--kubeflow"]
    command += ["--pipeline", "taxi"]
    command += ["--root", str(tmp_path / "root"), "--image", "registry.example/pipelines:1"]
    command += ["--data", prepare_data(Config.model_construct(data=None))]
    command += ["--output", str(compiled), "--set", "trainer.train_steps=300", "--set", BEAM]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)

    first, second = (_run(compiled, tmp_path / f"out-{number}") for number in (1, 2))
    for ended in (first, second):
        assert ended.code == 0, ended.said[-5000:]
    assert first.metadata("pushed_model", having="pushed")["pushed"] == 1
    assert "the baseline's" not in first.verdict
    assert "the baseline's" in second.verdict

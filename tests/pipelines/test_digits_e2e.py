"""The digits pipeline, and everything that can go wrong in a run: its cached parts make that quick."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from pipelines.digits.data import write_digits
from tests.conftest import REPOSITORY
from tests.pipeline_runs import PipelineRun, command, completed, run_local
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.workbench.history.pages import gather_run
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import State
from tfx_tpu_trainer.workbench.project.project import find_pipeline
from tfx_tpu_trainer.workbench.project.roots import Root


def folders(root: Path, component: str) -> set[Path]:
    """Returns the artifact folders of a component on disk."""
    return set((root / "artifacts" / component).glob("*/*"))


@pytest.mark.e2e
def test_digits_reach_95_percent_and_are_pushed(digits_run: PipelineRun) -> None:
    report = digits_run.report
    assert report.eval_metrics["accuracy"] >= 0.95
    assert report.blessed is True
    assert report.pushed is not None
    assert report.prediction is not None
    assert report.prediction.outputs["digit"] == report.prediction.withheld["digit"]


# Later runs find Transform's output in the cache; test_trainer_pipeline.py has a trainer that is found there.
@pytest.mark.sweep
@pytest.mark.e2e
def test_a_second_run_is_answered_from_the_cache(digits_run: PipelineRun) -> None:
    second = completed(run_local("digits", digits_run.root))
    states = {node: status.state for node, status in second.statuses.items()}
    for node in ("ImportExampleGen", "StatisticsGen", "SchemaGen", "Transform", "TpuTrainer"):
        assert states[node] is State.CACHED, node


@pytest.mark.sweep
@pytest.mark.e2e
def test_another_setting_trains_again_on_what_is_cached(digits_run: PipelineRun) -> None:
    other = run_local(
        "digits", digits_run.root, "trainer.train_steps=5", options=["--plain", "--check"]
    )
    assert other.exit_code == 3, other.output
    assert other.statuses["Transform"].state is State.CACHED
    assert other.statuses["TpuTrainer"].state is State.COMPLETE
    # Five steps are too few: the gate reports it and nothing is pushed. Only with --check is that a failure.
    assert other.report.blessed is False
    assert other.report.pushed is None
    assert "accuracy" in other.report.verdict
    assert "not blessed" in other.output
    assert "nothing pushed" in other.output
    assert "Not blessed. It does not overfit" in other.output


# tests/components/trainer/test_estimators.py runs a pipeline on emulated cores.
@pytest.mark.sweep
@pytest.mark.e2e
def test_emulated_tpu_cores_reach_what_the_host_reaches(
    digits_run: PipelineRun, cores_run: PipelineRun
) -> None:
    # The optimizer averages over the cores, so that 4 cores make the steps of one.
    assert cores_run.statuses["Transform"].state is State.CACHED
    assert "runs on emulated TPU cores" in cores_run.log
    for name, value in digits_run.report.eval_metrics.items():
        assert cores_run.report.eval_metrics[name] == pytest.approx(value, abs=0.01), name


@pytest.fixture(scope="module")
def failing(digits_run: PipelineRun) -> Callable[[list[str], str], tuple[PipelineRun, set[Path]]]:
    """Runs the pipeline once with overrides that make a component fail; also returns its earlier folders."""
    made: dict[tuple[str, ...], tuple[PipelineRun, set[Path]]] = {}

    def run(overrides: list[str], node: str) -> tuple[PipelineRun, set[Path]]:
        key = tuple(overrides)
        if key not in made:
            before = folders(digits_run.root, node)
            made[key] = run_local("digits", digits_run.root, *overrides), before
        return made[key]

    return run


_NAN = (["model.learning_rate=1e38"], "TpuTrainer", "NaN loss during training")
_LABEL = (["trainer.label_key=nope"], "TpuTrainer", "label_key='nope'")
_DATA = ([f"data={REPOSITORY / 'docs'}"], "ImportExampleGen", "Not a valid TFRecord")


@mostly_swept(
    ("overrides", "node", "expected"),
    [
        _NAN,
        _LABEL,
        _DATA,
        (["trainer.train_batch_size=100000"], "TpuTrainer", "train_batch_size=100000"),
    ],
    kept=[_NAN],
)
@pytest.mark.e2e
def test_a_failing_component_is_named_with_the_reason(
    digits_run: PipelineRun, failing, overrides: list[str], node: str, expected: str
) -> None:
    failed, before = failing(overrides, node)
    assert failed.exit_code == 1, failed.output
    last_line = failed.output.rstrip().splitlines()[-1]
    assert last_line.startswith(f"{node} failed: ")
    assert expected in last_line
    assert failed.report.failure.node == node
    assert f"ERROR   {node}: {node} failed: " in failed.log
    assert "Traceback (most recent call last)" in failed.log
    status = failed.statuses[node]
    assert status.state is State.FAILED
    assert expected in status.error
    assert "Pusher" not in failed.statuses
    # No half-written folder stays behind.
    assert folders(digits_run.root, node) == before


@pytest.mark.e2e
def test_the_page_of_a_run_that_failed_in_training_says_where(
    digits_run: PipelineRun, failing
) -> None:
    failed, _ = failing(*_NAN[:2])
    assert failed.exit_code == 1, failed.output
    page = gather_run(Root.at(str(digits_run.root)), failed.name)
    assert page.title == f"Run {failed.name}"
    assert page.stopped.startswith("NanLossError: NaN loss during training")
    params = {k: v for k, v in page.lineage.settings.items() if k.startswith("params.")}
    assert list(params.values()).count("1e+38") == 1, params
    # The run has written it.
    assert "NanLossError: NaN loss" in Path(failed.report.page).read_text("utf-8")
    # That of the run before is found by its name all the same.
    assert gather_run(Root.at(str(digits_run.root)), digits_run.name).stopped is None


_THREE_CORES = ["trainer.use_tpu=true", "trainer.num_shards=3"]
_SAYS = "train_batch_size=64 is not divisible by num_shards=3"


@pytest.mark.e2e
def test_a_batch_that_cannot_be_divided_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=_SAYS):
        find_pipeline("digits").config(root=str(tmp_path), overrides=_THREE_CORES)
    assert not list(tmp_path.iterdir())


@pytest.mark.sweep
@pytest.mark.e2e
def test_the_command_says_of_such_a_batch_what_is_wrong(digits_run: PipelineRun) -> None:
    refused = run_local("digits", digits_run.root, *_THREE_CORES)
    assert refused.exit_code == 2
    assert _SAYS in refused.output
    assert refused.name is None


@pytest.mark.matrix
@pytest.mark.e2e
def test_a_run_that_is_interrupted_ends_its_child_and_is_marked_failed(tmp_path: Path) -> None:
    with subprocess.Popen(
        command("digits", tmp_path),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell starts background processes with SIGINT ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        for line in process.stdout:
            if "StatisticsGen: running" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait() == 130, rest
        assert "stopped; run the same command again to continue: completed components come" in rest
    # The child held the root's lock, too; if the lock is free, the child is gone.
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    store = metadata.open_store(tmp_path / "metadata.sqlite")
    (name,) = metadata.run_names(store)
    # Code that swallows the stop lets StatisticsGen end first; the reminder then stops what follows it.
    statuses = metadata.node_statuses(store, name)
    assert State.RUNNING not in {status.state for status in statuses.values()}
    assert "TpuTrainer" not in statuses
    failed = [status for status in statuses.values() if status.state is State.FAILED]
    assert all("SIGTERM" in status.error for status in failed)


@pytest.mark.sweep
@pytest.mark.e2e
def test_a_run_whose_process_is_killed_says_so_in_its_output_and_in_ml_metadata(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        command("digits", tmp_path),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout:
            if "StatisticsGen: running" in line:
                break
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        os.kill(int(children.split()[0]), signal.SIGKILL)
        rest = process.stdout.read()
        assert process.wait() == 1, rest
    last_line = rest.rstrip().splitlines()[-1]
    assert last_line == "StatisticsGen failed: the pipeline's process was ended by SIGKILL"
    store = metadata.open_store(tmp_path / "metadata.sqlite")
    (name,) = metadata.run_names(store)
    status = metadata.node_statuses(store, name)["StatisticsGen"]
    assert (status.state, status.error) == (State.FAILED, last_line.partition(": ")[2])


def test_all_digits_are_written_and_an_equal_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "digits.tfrecord"
    write_digits(path)
    rows = [
        tf.train.Example.FromString(row)
        for row in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    ]
    images, digits = load_digits(return_X_y=True)
    assert len(rows) == len(images) == 1797
    assert list(rows[0].features.feature["pixels"].int64_list.value) == images[0].tolist()
    assert [row.features.feature["digit"].int64_list.value[0] for row in rows] == digits.tolist()

    os.utime(path, (1_000_000, 1_000_000))
    write_digits(path)
    assert path.stat().st_mtime == 1_000_000
    assert [entry.name for entry in path.parent.iterdir()] == ["digits.tfrecord"]

    path.write_bytes(b"half of it")
    write_digits(path)
    assert path.stat().st_size > 100_000

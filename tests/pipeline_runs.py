"""Pipeline runs that all end-to-end tests of a session share, made as a user makes them."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from ml_metadata.proto.metadata_store_pb2 import Artifact

from tfx_tpu_trainer.workbench.history.report import RunReport
from tfx_tpu_trainer.workbench.history.run_log import DEBUG_LOG, LOG
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus
from tfx_tpu_trainer.workbench.run.run_child import REPORT

_REPOSITORY = Path(__file__).parents[1]
_RUN_SECONDS = 600

# Half as many evaluations as in the pipeline's own config, since each builds two graphs again.
TAXI = ("trainer.eval_every_steps=500",)


@dataclasses.dataclass(frozen=True)
class PipelineRun:
    """One call of `tfx-tpu-trainer run`, as it is typed, and what it left behind.

    Attributes:
        root: The run's root.
        exit_code: The command's.
        output: Its output, both streams.
        folder: Its config, logs and report; None if it was rejected before it began.
        name: Its name in ML Metadata; None if no component began.
    """

    root: Path
    exit_code: int
    output: str
    folder: Path | None
    name: str | None

    @property
    def log(self) -> str:
        return (self.folder / LOG).read_text(errors="replace") if self.folder else ""

    @property
    def debug_log(self) -> str:
        return (self.folder / DEBUG_LOG).read_text(errors="replace") if self.folder else ""

    @property
    def report(self) -> RunReport:
        report = RunReport.read(self.folder / REPORT) if self.folder else None
        assert report is not None, self.output
        return report

    @property
    def statuses(self) -> dict[str, NodeStatus]:
        """The run's components in ML Metadata."""
        assert self.name is not None, self.output
        return metadata.node_statuses(metadata.open_store(self.root / "metadata.sqlite"), self.name)

    def outputs(self, node: str) -> dict[str, Artifact]:
        """The output artifacts of a component, by their keys."""
        store = metadata.open_store(self.root / "metadata.sqlite")
        return metadata.outputs(store, self.statuses[node].execution_id)

    def output_folder(self, node: str, key: str) -> Path:
        """The folder of an output artifact of the run."""
        return Path(self.outputs(node)[key].uri)


def run_local(
    pipeline: str, root: Path, *overrides: str, options: Sequence[str] = ()
) -> PipelineRun:
    """Runs a pipeline as a user does: `tfx-tpu-trainer run`, in its own process."""
    folders, names = _run_folders(root), _run_names(root)
    ended = subprocess.run(
        command(pipeline, root, *overrides, options=options),
        cwd=_REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_RUN_SECONDS,
    )
    new_folders = _run_folders(root) - folders
    new_names = [name for name in _run_names(root) if name not in names]
    return PipelineRun(
        root=root,
        exit_code=ended.returncode,
        output=ended.stdout,
        folder=next(iter(new_folders), None),
        name=next(iter(new_names), None),
    )


def command(pipeline: str, root: Path, *overrides: str, options: Sequence[str] = ()) -> list[str]:
    """The command line of a run."""
    words = [
        sys.executable,
        "-m",
        "tfx_tpu_trainer.workbench.cli.main",
        "run",
        "--pipeline",
        pipeline,
    ]
    words += ["--root", str(root), *options]
    for override in overrides:
        words += ["--set", override]
    return words


def _run_folders(root: Path) -> set[Path]:
    return set((root / "logs").iterdir()) if (root / "logs").exists() else set()


def _run_names(root: Path) -> list[str]:
    path = root / "metadata.sqlite"
    return metadata.run_names(metadata.open_store(path)) if path.exists() else []


def completed(run: PipelineRun) -> PipelineRun:
    """The run, or a failed fixture that shows why it is not one."""
    if run.exit_code != 0:
        pytest.fail(f"{run.output}\n--- end of the log ---\n{run.log[-4000:]}", pytrace=False)
    return run


@pytest.fixture(scope="session")
def taxi_run(tmp_path_factory: pytest.TempPathFactory) -> PipelineRun:
    """The taxi pipeline, run once with its own config, except for `TAXI`."""
    return completed(run_local("taxi", tmp_path_factory.mktemp("taxi") / "root", *TAXI))


@pytest.fixture(scope="session")
def cores_run(digits_run: PipelineRun) -> PipelineRun:
    """The digits pipeline, run for a second time under the same root, on four emulated cores."""
    cores = ["trainer.use_tpu=true", "trainer.master=emulated", "trainer.num_shards=4"]
    return completed(run_local("digits", digits_run.root, *cores))


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> PipelineRun:
    """The digits pipeline, run once with its own config."""
    return completed(run_local("digits", tmp_path_factory.mktemp("digits") / "root"))

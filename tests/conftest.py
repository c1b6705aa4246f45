"""Who runs which test and when, and pipeline runs that all end-to-end tests of a session share."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import random
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import pytest
from ml_metadata.proto.metadata_store_pb2 import Artifact

from pipelines import metadata
from pipelines.metadata import NodeStatus
from pipelines.report import RunReport
from pipelines.run_child import REPORT
from tests import bad_input, excused
from tests.bad_input import refused as refused

REPOSITORY = Path(__file__).parents[1]
RUN_SECONDS = 600


# Session fixtures that take long: all tests that use one go to the same worker.
SHARED = ("taxi_run", "digits_run", "transform_graph")
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
BAD_INPUT_ROWS = pytest.StashKey[dict[tuple[bad_input.Row, str], None]]()


class _DeprecatedCalls(logging.Handler):
    """Fails a test in which a module of ours calls what TensorFlow has deprecated: users read it in their logs."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        assert not text.startswith(f"From {REPOSITORY}/tfx_tpu_trainer/"), text


def pytest_configure() -> None:
    # TensorFlow logs it, once for each place, and warns of nothing.
    logging.getLogger("tensorflow").addHandler(_DeprecatedCalls())


# Before pytest-xdist's own, which reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Says which tests belong together and orders them.

    A worker of pytest-xdist has fixtures of its own. Tests of one file therefore stay in one worker, where they share
    the file's fixtures; and tests of a pipeline's run stay in one, whatever their files, so that it runs once.

    Where there are workers, the long ones come first: what is left for the end is short, and no worker waits long for
    the other. In a single process the quick ones come first, so that a slip shows before the pipelines run.
    """
    config.stash[BAD_INPUT_ROWS] = bad_input.rows_of(items)
    cannot_run = excused.rows_here()
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if reason := excused.reason(item.nodeid, cannot_run):
            item.add_marker(pytest.mark.skip(reason))
    items.sort(key=_weight, reverse=WORKER is not None)


# A wrapper, so that pytest-xdist's controller, which collects nothing, has it on again as well.
@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports all test modules without a look for garbage.

    Importing TensorFlow and TFX makes a million objects that stay: looking through them again and again takes a
    quarter of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_collection_finish() -> None:
    # All test modules are imported and no test has run. Where none of them needs TensorFlow, its import is spared.
    if "tensorflow" in sys.modules:
        from tests.logical_devices import make_logical_devices

        make_logical_devices()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()


def _seed() -> None:
    """Lets fixtures and tests draw the same numbers in each run.

    Programs that users wrote set no seeds, and Keras draws its first weights from Python's own generator.
    """
    random.seed(11)
    np.random.seed(11)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(11)


def _group(item: pytest.Item) -> str:
    shared = [name for name in SHARED if name in item.fixturenames]
    return shared[0] if shared else item.nodeid.partition("::")[0]


def _weight(item: pytest.Item) -> int:
    """How long a test's group may take, roughly."""
    slow = any(item.get_closest_marker(name) for name in ("matrix", "e2e", "sweep"))
    return slow + 2 * (WORKER is not None and _group(item) in SHARED)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # pytest-xdist adds "@group" to a test's name, with which a reader could not call it again. Workers keep it.
    name, at, group = report.nodeid.rpartition("@")
    if at and "]" not in group and WORKER is None:
        report.nodeid = name


@dataclasses.dataclass(frozen=True)
class PipelineRun:
    """One call of `pipelines.local_runner`, as it is typed, and what it left behind.

    Attributes:
        root: The run's root.
        exit_code: The command's.
        output: What it printed, both streams.
        folder: Its config, log and report; None where it was refused before it began.
        name: Its name in ML Metadata; None where no component began.
    """

    root: Path
    exit_code: int
    output: str
    folder: Path | None
    name: str | None

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace") if self.folder else ""

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
    """Runs a pipeline as a user does: `python -m pipelines.local_runner`, in its own process."""
    folders, names = _run_folders(root), _run_names(root)
    ended = subprocess.run(
        command(pipeline, root, *overrides, options=options),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
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
    words = [sys.executable, "-m", "pipelines.local_runner", "--pipeline", pipeline]
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
    """The taxi pipeline, run once with its own config."""
    return completed(run_local("taxi", tmp_path_factory.mktemp("taxi") / "root"))


@pytest.fixture(scope="session")
def cores_run(digits_run: PipelineRun) -> PipelineRun:
    """The digits pipeline, run for a second time under the same root, on four emulated cores."""
    cores = ["trainer.use_tpu=true", "trainer.master=emulated", "trainer.num_shards=4"]
    return completed(run_local("digits", digits_run.root, *cores))


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> PipelineRun:
    """The digits pipeline, run once with its own config."""
    return completed(run_local("digits", tmp_path_factory.mktemp("digits") / "root"))

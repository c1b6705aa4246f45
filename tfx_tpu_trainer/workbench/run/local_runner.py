"""Runs a project's pipeline on this machine, shows its progress and prints its results.

A child process runs the pipeline and writes the log; its output goes to the debug log. This process only watches and
reports, and imports neither TensorFlow nor TFX.
"""

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import click
import ml_metadata
from rich.console import Console

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER, printable
from tfx_tpu_trainer._support.processes import module_command
from tfx_tpu_trainer._support.progress_views import STATUS_VARIABLE, read_status
from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.workbench.history import run_log
from tfx_tpu_trainer.workbench.history.graph import Graph, to_mermaid
from tfx_tpu_trainer.workbench.history.progress import Display, RunMonitor, make_display
from tfx_tpu_trainer.workbench.history.report import REPORT, Failure, RunReport
from tfx_tpu_trainer.workbench.history.summary import print_summary, short_path
from tfx_tpu_trainer.workbench.project import metadata, roots
from tfx_tpu_trainer.workbench.project.beam import beam_problem
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State, UnreadableError
from tfx_tpu_trainer.workbench.project.project import Project
from tfx_tpu_trainer.workbench.run import run_child
from tfx_tpu_trainer.workbench.run.run_child import SIGNALS

POLL_SECONDS = 0.25
PLAIN_WIDTH = 140
PROGRESS = "progress.json"
NOT_BLESSED = 3
"""Exit code of `run --check` if the gate did not bless the model."""
# A little more than a training gets for its checkpoint.
STOP_SECONDS = 30
_NOT_POLITE = f"stopped by SIGKILL: it did not end within {STOP_SECONDS} s of SIGTERM"


def run_to_end(
    find: Callable[[], Project],
    *,
    config_file: Path | None = None,
    root: str | None = None,
    overrides: Sequence[str] = (),
    plain: bool = False,
    check: bool = False,
) -> int:
    """Runs a project's pipeline, shows its progress, and prints results or errors; returns the exit code."""
    console = standard_output(width=PLAIN_WIDTH)
    began = time.time()
    config = None
    try:
        project = find()
        config = project.config(config_file=config_file, root=root, overrides=overrides)
        _check_inputs(project, config)
        with _locked_root(config) as lock:
            report = run(project, config, console=console, plain=plain, lock=lock)
    except ConfigError as error:
        for line in str(error).splitlines():
            click.echo(f"error: {printable(line)}", err=True)
        return 2
    except OSError as error:
        if config is None:
            raise
        where = f" ({error.filename})" if error.filename else ""
        message = (
            f"root {config.root!r} can't be written to: {error.strerror}{where}; free some space "
            "there, or choose another with --root"
        )
        click.echo(f"error: {printable(message)}", err=True)
        return 2
    except KeyboardInterrupt:
        rest = f"; {how_to_go_on(config, began=began)}" if config else ""
        click.echo(f"stopped{rest}", err=True)
        return 130
    if report.failure is not None:
        return 1
    return NOT_BLESSED if check and report.blessed is False else 0


def _check_inputs(project: Project, config: PipelineConfig) -> None:
    """Reports problems at once that the child would find after half a minute of imports."""
    if config.trainer.module:
        project.check_module(config.trainer.module)
    if not config.data and not project.finds_data:
        raise ConfigError(
            f"data of {config.name!r} is null, and {str(project.folder)!r} has no data.py that "
            "finds it; set data to the folder of the input files"
        )
    if problem := run_child.data_problem(config):
        raise ConfigError(problem)
    if problem := beam_problem(config.beam_args):
        raise ConfigError(f"beam_args: {problem}")
    path = config.trainer.module_file
    if path and "://" not in path and not Path(path).is_file():
        raise ConfigError(
            f"trainer.module_file {path!r} is not a file; give the path of a .py file with model_fn"
        )


def run(
    project: Project, config: PipelineConfig, *, console: Console, plain: bool, lock: IO[str]
) -> RunReport:
    """Runs a pipeline in a child process, shows its progress and prints the summary."""
    try:
        monitor = RunMonitor(config.metadata_file)
        _mark_killed(config)
    except (UnreadableError, ml_metadata.errors.StatusError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"{message[:200]}; remove the file or choose another --root") from None
    folder = _new_run_folder(Path(config.root))
    config_json = folder / "config.json"
    write_whole(config_json, config.model_dump_json(indent=1))
    log, debug_log = folder / run_log.LOG, folder / run_log.DEBUG_LOG
    # Exists even if the child dies before it can write a log.
    log.touch()
    console.print(f"Pipeline {config.name!r} in {short_path(config.root)}")
    console.print(f"Log: {short_path(log)}", soft_wrap=True)

    command = module_command("tfx_tpu_trainer.workbench.run.run_child", *project.words)
    command += ["--config-json", str(config_json), "--run-folder", str(folder)]
    with (
        debug_log.open("ab") as output,
        make_display(console, plain=plain) as display,
        subprocess.Popen(
            command,
            # The system closes it with this process, and the child then ends.
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=project.base,
            env=child_environment() | {STATUS_VARIABLE: str(folder / PROGRESS)},
            start_new_session=True,
            pass_fds=[lock.fileno()],
        ) as child,
        _stopping(child, killed=lambda: _record_end(config, monitor.run, _NOT_POLITE)),
    ):
        statuses = _watch(child, monitor, folder, display)
    report = RunReport.read(folder / REPORT)
    if report is None:
        reason = _last_words(debug_log, child.returncode)
        _record_end(config, monitor.run, reason)
        report = RunReport(failure=Failure(_running(statuses), reason))
        statuses = [metadata.killed_if_running(status) for status in statuses]
    _draw(statuses, folder)
    print_summary(
        console, statuses=statuses, report=report, metadata_file=config.metadata_file, log=log
    )
    return report


def how_to_go_on(config: PipelineConfig, *, began: float) -> str:
    """Describes the files that a stopped run left for the next one."""
    kept = ["completed components come from TFX's cache"] if config.enable_cache else []
    step = roots.step_to_go_on_from(Path(config.checkpoint_root), since=began)
    if step is not None:
        kept.append(f"the training resumes from its checkpoint of step {step:,}")
    return f"run the same command again to continue{': ' if kept else ''}{', '.join(kept)}"


def child_environment() -> dict[str, str]:
    """Returns the environment for the process that imports TensorFlow and TFX."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["TF_USE_LEGACY_KERAS"] = "1"
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    environment["PYTHONUNBUFFERED"] = "1"
    here = str(PACKAGE_FOLDER.parent)
    # A checkout may not be installed. site-packages must not precede Python's own modules.
    if here not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [here, environment.get("PYTHONPATH")])
        )
    # Programs that TFX starts by name must come from this virtual environment.
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    )
    return environment


def _watch(
    child: subprocess.Popen[bytes], monitor: RunMonitor, folder: Path, display: Display
) -> list[NodeStatus]:
    """Shows the components until the child ends; returns their final statuses."""
    nodes: list[str] = []
    statuses: list[NodeStatus] = []
    while True:
        # Checked before the statuses are read, so those read after the end are final. In the other order, a
        # component that completes in between would be shown as running forever.
        ended = child.poll() is not None
        if not nodes and (folder / run_child.PLAN).exists():
            with contextlib.suppress(json.JSONDecodeError):
                nodes = json.loads((folder / run_child.PLAN).read_text(encoding="utf-8"))
        seen = monitor.statuses(nodes)
        if seen is not None:
            statuses = seen
        if ended and (seen is not None or not nodes):
            return [_final(status) for status in statuses]
        display.update(statuses, _note(statuses), _progress(statuses, folder))
        time.sleep(POLL_SECONDS)


def _draw(statuses: Sequence[NodeStatus], folder: Path) -> None:
    """Writes the run's diagram next to its log, if the pipeline was made."""
    graph = Graph.read(folder / run_log.GRAPH_FILE)
    if graph is None:
        return
    try:
        write_whole(folder / run_log.DIAGRAM_FILE, to_mermaid(graph.of_run(statuses)))
    except OSError as error:
        # The run has ended, and `tfx-tpu-trainer graph` can draw it again.
        click.echo(f"The diagram of the run can't be written: {printable(str(error))}", err=True)


def _progress(statuses: Sequence[NodeStatus], folder: Path) -> str | None:
    """Returns the running component's own progress, which a TpuTrainer reports."""
    node = _running(statuses)
    said = None if node is None else read_status(folder / PROGRESS)
    return None if said is None else f"{node}: {said}"


def _note(statuses: Sequence[NodeStatus]) -> str:
    if not statuses or all(status.state is State.WAITING for status in statuses):
        return "starting TensorFlow and TFX"
    if all(status.state.ended for status in statuses):
        return "getting a prediction from the model"
    return "running"


def _final(status: NodeStatus) -> NodeStatus:
    """Returns a component's status after its run: a waiting one will never run."""
    if status.state is State.WAITING:
        return NodeStatus(status.node, State.SKIPPED)
    return status


def _running(statuses: Sequence[NodeStatus]) -> str | None:
    return next((status.node for status in statuses if status.state is State.RUNNING), None)


def _last_words(debug_log: Path, code: int) -> str:
    """Returns the last output of a child that could not write its report."""
    lines = [
        line
        for line in debug_log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    if code < 0:
        return f"the pipeline's process was ended by {signal.Signals(-code).name}"
    return (
        lines[-1]
        if lines
        else f"the pipeline's process ended with exit code {code} and without output"
    )


def _new_run_folder(root: Path) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(100):
        folder = root / roots.LOGS / (f"{stamp}-{attempt}" if attempt else stamp)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise ConfigError(f"can't create a folder in {root / roots.LOGS}; check its permissions")


@contextlib.contextmanager
def _locked_root(config: PipelineConfig) -> Iterator[IO[str]]:
    """Locks the root for this run: two runs in one SQLite file would confuse each other's executions."""
    if "://" in config.root:
        raise ConfigError(
            f"root {config.root!r} is in a bucket, but a local run needs local files for its lock, "
            "log and metadata; choose a folder with --root"
        )
    root = Path(config.root)
    with contextlib.ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(roots.locked(root))
        except roots.LockedError as error:
            raise ConfigError(
                f"another run is in progress in {config.root!r} ({error}); wait until it ends or choose "
                "another --root"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"root {config.root!r} can't be written to ({error.strerror}); choose another with "
                "--root"
            ) from None
        yield lock


@contextlib.contextmanager
def _stopping(child: subprocess.Popen[bytes], *, killed: Callable[[], None]) -> Iterator[None]:
    """Stops the child when this process is stopped: first by SIGTERM, so TFX records it and cleans up."""

    # The child has its own session, so Ctrl-C reaches this process only, which then sends SIGTERM to the child:
    # TFX records the failure, and a training writes its checkpoint. This happens whenever the block ends; only a child
    # that does not end in time is killed, with everything that it started.
    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    previous = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in previous.items():
        # nohup ignores SIGHUP, and a shell's background jobs ignore SIGINT.
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            killed()
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _record_end(config: PipelineConfig, run: str | None, reason: str) -> None:
    """Records the reason of a run's end if the run could not record it itself."""
    if run is None:
        return
    try:
        metadata.fail_unfinished(
            metadata.open_store(config.metadata_file, read_only=False), run, reason
        )
    except (UnreadableError, ml_metadata.errors.StatusError) as error:
        click.echo(f"ML Metadata still shows the run as running: {printable(str(error))}", err=True)


def _mark_killed(config: PipelineConfig) -> None:
    """Records runs as killed, which is safe now that this one holds the lock that they held."""
    file = Path(config.metadata_file)
    # Another root may share a metadata file outside this one, and have a run in progress.
    if file.parent == Path(config.root) and file.exists():
        metadata.mark_killed(metadata.open_store(file, read_only=False))

"""Runs a pipeline in its own process: `python -m tfx_tpu_trainer.workbench.run.run_child`.

The local runner starts it. It writes `plan.json` once ML Metadata can be read, `log.txt` during the run, and
`report.json` at the run's end, successful or not. Its standard input is a pipe from the local runner, with which it
ends.
"""

import contextlib
import dataclasses
import gc
import importlib.metadata
import json
import logging
import os
import platform
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import click

import tfx_tpu_trainer
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.workbench.history import run_log
from tfx_tpu_trainer.workbench.history.graph import graph_of_pipeline
from tfx_tpu_trainer.workbench.history.pages import write_report
from tfx_tpu_trainer.workbench.history.report import (
    REPORT,
    Failure,
    RunReport,
    collect,
    failed_nodes,
)
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.beam import beam_problem, job_problem
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.project import Project, find_pipeline, load_project
from tfx_tpu_trainer.workbench.project.roots import Root, link_run

PLAN = "plan.json"

MESSAGE_LIMIT = 600

_logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that stop a run; a closed terminal sends the last one."""

# Short enough for a component that swallowed the first exception, long enough for TFX to record a failure.
REMIND_SECONDS = 1.0


class RunStoppedError(Exception):
    """The run was stopped; an Exception, so TFX cleans up as after any other failure."""


class Stop:
    """Ends a run on request.

    The exception is raised wherever the run is at that time. Code that catches all exceptions may swallow it, or turn
    it into another one, like an import of a component; so it is raised again until the run has ended, and the reason is
    kept. A training may write its checkpoint first.
    """

    def __init__(self) -> None:
        self.reason: str | None = None

    def listen(self) -> None:
        """Handles the signals that stop a process."""
        for number in (*SIGNALS, signal.SIGALRM):
            signal.signal(number, self._interrupt)

    def ended(self) -> None:
        """Marks the run as ended, so nothing after it is interrupted."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (*SIGNALS, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del frame
        # The first signal is the reason. The alarm that raises it again also comes here, and is not a signal.
        self.reason = self.reason or f"stopped by {signal.Signals(number).name}"
        # A process that trains has imported it.
        training = sys.modules.get("tfx_tpu_trainer.estimator._engine.sessions.preemption")
        if training is not None and training.ask_to_stop(number):
            return
        signal.setitimer(signal.ITIMER_REAL, REMIND_SECONDS)
        raise RunStoppedError(self.reason)


_stop = Stop()


@click.command()
@click.option("--pipeline", "name")
@click.option("--project", "folder", type=click.Path(path_type=Path))
@click.option("--config-json", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--run-folder", required=True, type=click.Path(exists=True, path_type=Path))
def main(name: str | None, folder: Path | None, config_json: Path, run_folder: Path) -> None:
    """Runs one pipeline to its end and reports."""
    end_with_parent()
    _stop.listen()
    log = run_log.start(run_folder)
    project = find_pipeline(name) if name else load_project(folder or ".")
    config = project.config_class().model_validate_json(config_json.read_text(encoding="utf-8"))
    _logger.info("Pipeline %r in %s: %s", config.name, config.root, _versions())
    if config.beam_args:
        # Beam's workers are separate processes.
        path = (os.environ.get("PYTHONPATH"), str(project.import_root))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    report = run_pipeline(project, config, run_folder)
    report.write(run_folder / REPORT)
    if report.failure:
        _logger.error(
            "%s failed: %s", report.failure.node or "the pipeline", report.failure.message
        )
    else:
        _logger.info("The pipeline has ended: %s", report.verdict or "no gate has judged the model")
    log.close()
    sys.exit(1 if report.failure else 0)


def _versions() -> str:
    """Returns the versions behind a run, for readers of its log a year later."""
    found = [f"tfx-tpu-trainer {tfx_tpu_trainer.__version__}"]
    for package in ("tensorflow", "tfx", "apache-beam"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join([*found, f"Python {platform.python_version()}"])


def run_pipeline(project: Project, config: PipelineConfig, run_folder: Path) -> RunReport:
    """Runs a pipeline with TFX's local runner."""
    Path(config.root).mkdir(parents=True, exist_ok=True)
    store = metadata.open_store(config.metadata_file, read_only=False)
    known = metadata.run_names(store)
    try:
        # The million objects of these imports are permanent: searching them for garbage takes two of the ten seconds.
        # After `freeze` no collection looks at them again.
        gc.disable()
        from absl import logging as absl_logging
        from tfx import v1 as tfx

        gc.freeze()
        gc.enable()
        absl_logging.set_verbosity(absl_logging.INFO)
        logging.getLogger().setLevel(logging.INFO)
        config = config.model_copy(update={"data": project.prepare_data(config)})
        pipeline = project.create_pipeline(config)
        pipeline.metadata_connection_config = (
            tfx.orchestration.metadata.sqlite_metadata_connection_config(config.metadata_file)
        )
        plan = [component.id for component in pipeline.components]
        graph_of_pipeline(pipeline).write(run_folder / run_log.GRAPH_FILE)
        write_whole(run_folder / PLAN, json.dumps(plan))
        tfx.orchestration.LocalDagRunner().run(pipeline)
    # A module that calls sys.exit(0) has not succeeded, despite the exit code.
    except (Exception, SystemExit) as error:
        # First of all: another signal must not interrupt the report of the failure.
        _stop.ended()
        _logger.error("The pipeline stops:", exc_info=True)
        message = _stop.reason or data_problem(config) or _failure(config, error)
        # TFX chooses the run's name, which is the one that did not exist before.
        run = metadata.newest_run(store, known=known)
        node = metadata.fail_unfinished(store, run, message) if run else None
        page = _write_page(config, run) if run and not _stop.reason else None
        return RunReport(failure=Failure(node, message), run=run, page=page)

    run = metadata.newest_run(store, known=known)
    if run is None:
        return RunReport(failure=Failure(None, "TFX recorded no run in ML Metadata; see the log"))
    for status in failed_nodes(metadata.node_statuses(store, run)):
        message = status.error or "its inputs could not be resolved; see the log"
        return RunReport(failure=Failure(status.node, message), run=run)
    try:
        report = collect(store, run, serving_absent=config.serving_absent)
        return dataclasses.replace(
            report,
            run=run,
            tensorboard=_link_events(config, run_folder, report),
            page=_write_page(config, run),
        )
    except Exception as error:
        _stop.ended()
        _logger.error("The pipeline ended, but its result can't be used:", exc_info=True)
        return RunReport(
            failure=Failure(
                None, f"the pipeline ended, but its result can't be used: {one_line(error)}"
            ),
            run=run,
        )


def _link_events(config: PipelineConfig, run_folder: Path, report: RunReport) -> str | None:
    """Names the events of the run for TensorBoard; returns the folder to start it with."""
    if report.model_run is None:
        return None
    try:
        name = f"{config.name}-{run_folder.name}"
        return str(link_run(Path(config.root), Path(report.model_run), name=name))
    except OSError as error:
        # A file system without links; TensorBoard shows the events nevertheless.
        _logger.warning("TensorBoard shows runs by their numbers: %s", error)
        return None


def _write_page(config: PipelineConfig, run: str) -> str | None:
    """Writes the page of the run's training, with the gate's verdict; returns its path, `None` without a training."""
    try:
        return write_report(Root.of(config), run)
    except ConfigError:
        return None
    except Exception as error:  # The model is trained and judged nevertheless.
        _logger.warning("The page of this run could not be written: %s", one_line(error))
        return None


def _failure(config: PipelineConfig, error: BaseException) -> str:
    """Returns an error as one line, after the missing part of a Beam job if that is the cause."""
    said = one_line(error)
    problem = job_problem(config.beam_args, said) or beam_problem(config.beam_args)
    return f"{problem}. {said}" if problem else said


def data_problem(config: PipelineConfig) -> str | None:
    """Returns why the config's data can't be read, if the folder shows it; else None."""
    folder = Path(config.data or "")
    if not config.data or "://" in config.data:
        return None
    fix = "set data to the folder of the input files"
    if not folder.is_dir():
        return f"data {config.data!r} is not a folder; {fix}"
    files = 0
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith((".", "_")):
            files += 1
            if _has_rows(path):
                return None
    return f"data {config.data!r} contains no rows (files: {files}); {fix}"


def _has_rows(path: Path) -> bool:
    """Returns whether a file has data: a CSV file with only a header has none."""
    if path.suffix != ".csv":
        return path.stat().st_size > 0
    with path.open("rb") as file:
        return bool(file.readline() and file.readline().strip())


def one_line(error: BaseException) -> str:
    """Returns an exception as one line; of a remote traceback in the message, only the final error."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in text:
        return lines[-1][:MESSAGE_LIMIT]
    message = " ".join(lines)
    if len(message) > MESSAGE_LIMIT:
        message = f"{message[:MESSAGE_LIMIT]} ... (see the log for the rest)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def end_with_parent() -> None:
    """Kills this process and its children when its parent has ended, even if the parent was killed.

    The parent has started it in a separate session, and only the parent holds the other end of the pipe that is its
    standard input, which the system closes. From now on, the standard input is empty.
    """
    if os.getsid(0) != os.getpid():
        # Started by hand, in the caller's process group.
        return
    held = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)

    def watch() -> None:
        os.read(held, 1)
        # At once: the same command, started again, must not find the root locked while a checkpoint is written.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


if __name__ == "__main__":
    main()

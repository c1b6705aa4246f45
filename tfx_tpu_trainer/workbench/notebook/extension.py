"""`%load_ext tfx_tpu_trainer.workbench.notebook`: quiet cells, with the results below them."""

from __future__ import annotations

import logging
import os
from typing import Any

import tensorflow as tf
from absl import logging as absl_logging
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import HTML, display
from tfx import v1 as tfx

from tfx_tpu_trainer._support.messages import is_of_this_package
from tfx_tpu_trainer.workbench.notebook import tfx_private
from tfx_tpu_trainer.workbench.notebook.pages import results_page
from tfx_tpu_trainer.workbench.notebook.quiet_runs import loud_runs, quiet_runs
from tfx_tpu_trainer.workbench.notebook.visualizations import register, verdict_of

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_HOOKS = (
    ("pre_run_cell", lambda *_: register()),
    ("post_run_cell", lambda ran: _show_results(ran)),
)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Shows what this package makes as pages, and the results of a component below the cell that has run it.

    Of TensorFlow's and TFX's log lines there are left, from now on, errors and the warnings of this package and of the
    notebook's own modules. What C++ and child processes print while a component runs is shown if it fails.

    Args:
        shell: IPython's shell, which calls this.
    """
    register()
    quiet_runs()
    for logger in _loggers():
        logger.addFilter(_is_worth_a_line)
    for event, hook in _HOOKS:
        shell.events.register(event, hook)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Leaves cells as they are again; what `InteractiveContext.show` shows stays.

    Args:
        shell: IPython's shell, which calls this.
    """
    loud_runs()
    for logger in _loggers():
        logger.removeFilter(_is_worth_a_line)
    for event, hook in _HOOKS:
        shell.events.unregister(event, hook)


def _loggers() -> tuple[logging.Logger, ...]:
    return tf.get_logger(), absl_logging.get_absl_logger()


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Leaves out what is not for the reader of a cell: news, and what one library has to tell another."""
    if record.levelno >= logging.ERROR:
        return True
    of_a_library = any(part in record.pathname for part in _LIBRARIES)
    return record.levelno >= logging.WARNING and (
        not of_a_library or is_of_this_package(record.pathname)
    )


def _show_results(ran: Any) -> None:
    """Displays the results of the component that a cell's last expression has run, where it has made a model."""
    if not isinstance(ran.result, tfx_private.ExecutionResult):
        return
    made = {
        artifact.type_name: artifact
        for channel in ran.result.component.outputs.values()
        for artifact in channel.get()
    }
    model = made.get(tfx.types.standard_artifacts.Model.TYPE_NAME)
    blessing = made.get(tfx.types.standard_artifacts.ModelBlessing.TYPE_NAME)
    if model is None and blessing is None:
        return
    display(
        HTML(
            results_page(
                model=_uri(model),
                evaluation=_uri(made.get(tfx.types.standard_artifacts.ModelEvaluation.TYPE_NAME)),
                verdict="" if blessing is None else verdict_of(blessing),
            )
        )
    )


def _uri(artifact: tfx.dsl.Artifact | None) -> str | None:
    return None if artifact is None else artifact.uri

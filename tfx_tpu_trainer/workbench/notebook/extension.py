"""`%load_ext tfx_tpu_trainer.workbench.notebook`: quiet cells, with the results below them."""

import contextlib
import functools
import html
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging as absl_logging
from IPython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import HTML, display
from tfx import v1 as tfx

from tfx_tpu_trainer._support.messages import is_of_this_package
from tfx_tpu_trainer.components.clusters import RunPage
from tfx_tpu_trainer.components.evaluation import BLESSED_PROPERTY, VERDICT_PROPERTY
from tfx_tpu_trainer.workbench.notebook import tfx_private
from tfx_tpu_trainer.workbench.notebook.pages import (
    blessing_page,
    evaluation_page,
    model_page,
    model_run_page,
    results_page,
    run_page,
)
from tfx_tpu_trainer.workbench.notebook.tfx_private import InteractiveContext

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# A failure's cause is at the end.
_LAST_LINES = 40

_DESCRIPTORS = (1, 2)


_HOOKS = (
    ("pre_run_cell", lambda *_: register()),
    # Each new InteractiveContext registers TFX's formatters again.
    ("pre_run_cell", lambda *_: _fold_executions(get_ipython())),
    ("post_run_cell", lambda ran: _show_results(ran)),
)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Shows this package's artifacts as pages, and a component's results below its cell.

    From now on, TensorFlow's and TFX's log lines are limited to errors, and to warnings of this package and of the
    notebook's own modules. The output of C++ code and child processes while a component runs is shown only if it fails.

    Args:
        shell: IPython's shell, which calls this.
    """
    register()
    _fold_executions(shell)
    quiet_runs()
    for logger in _loggers():
        logger.addFilter(_is_worth_a_line)
    for event, hook in _HOOKS:
        shell.events.register(event, hook)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Restores the cells; `InteractiveContext.show` keeps its pages.

    Args:
        shell: IPython's shell, which calls this.
    """
    loud_runs()
    _unfold_executions(shell)
    for logger in _loggers():
        logger.removeFilter(_is_worth_a_line)
    for event, hook in _HOOKS:
        shell.events.unregister(event, hook)


def _loggers() -> tuple[logging.Logger, ...]:
    return tf.get_logger(), absl_logging.get_absl_logger()


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Filters out log lines that a cell's reader does not need: INFO, and warnings between libraries."""
    if record.levelno >= logging.ERROR:
        return True
    of_a_library = any(part in record.pathname for part in _LIBRARIES)
    return record.levelno >= logging.WARNING and (
        not of_a_library or is_of_this_package(record.pathname)
    )


def _fold_executions(shell: InteractiveShell | None) -> None:
    """Folds TFX's table of an execution's objects, a cell's value, into one line above the results."""
    shown = _shows_executions(shell)
    if shell is not None and shown is not None and not hasattr(shown, "__wrapped__"):
        _html_of(shell).for_type(tfx_private.ExecutionResult, _folded(shown))


def _unfold_executions(shell: InteractiveShell) -> None:
    shown = _shows_executions(shell)
    if hasattr(shown, "__wrapped__"):
        _html_of(shell).for_type(tfx_private.ExecutionResult, shown.__wrapped__)


def _html_of(shell: InteractiveShell) -> Any:
    return shell.display_formatter.formatters["text/html"]


def _shows_executions(shell: InteractiveShell | None) -> Any:
    """Returns the HTML formatter of executions; `None` before TFX has registered it."""
    try:
        return shell and _html_of(shell).lookup_by_type(tfx_private.ExecutionResult)
    except KeyError:
        return None


def _folded(shown: Callable[[Any], str]) -> Callable[[Any], str]:
    @functools.wraps(shown)
    def folded(result: Any) -> str:
        title = f"Execution {result.execution_id} of {html.escape(result.component.id)}"
        return f"<details><summary>{title}</summary>{shown(result)}</details>"

    return folded


def _show_results(ran: Any) -> None:
    """Displays the results of the component that a cell's last expression ran, if it made a model."""
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


def quiet_runs() -> None:
    """Hides output to the file descriptors of stdout and stderr in cells that run a component.

    ipykernel shows this output in the cell: some forty lines about the wheel that TFX builds from a module file, and
    TensorFlow's C++ log. Python's own output and logs are shown as before. After a failure the last lines are printed.
    """
    if not _is_quiet():
        InteractiveContext.run = _quietly(InteractiveContext.run)


def loud_runs() -> None:
    """Undoes `quiet_runs`."""
    if _is_quiet():
        InteractiveContext.run = InteractiveContext.run.__wrapped__


def _is_quiet() -> bool:
    return getattr(InteractiveContext.run, "is_quiet", False)


def _quietly(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with tempfile.TemporaryFile() as hidden:
            try:
                with _descriptors_to(hidden.fileno()):
                    return run(*args, **kwargs)
            except BaseException:
                hidden.seek(0)
                lines = hidden.read().decode(errors="replace").splitlines()
                print(*lines[-_LAST_LINES:], sep="\n", file=sys.stderr)
                raise

    quiet.is_quiet = True  # type: ignore[attr-defined]
    return quiet


@contextlib.contextmanager
def _descriptors_to(file: int) -> Iterator[None]:
    kept = [os.dup(descriptor) for descriptor in _DESCRIPTORS]
    try:
        for descriptor in _DESCRIPTORS:
            os.dup2(file, descriptor)
        yield
    finally:
        for copy, descriptor in zip(kept, _DESCRIPTORS, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def is_blessed(blessing: tfx.dsl.Artifact) -> bool | None:
    """Returns whether a ModelBlessing blesses its model; `None` if the model was not judged."""
    if not blessing.has_custom_property(BLESSED_PROPERTY):
        return None
    return bool(blessing.get_int_custom_property(BLESSED_PROPERTY))


def verdict_of(blessing: tfx.dsl.Artifact) -> str:
    """Returns a ModelBlessing's verdict in words; `""` if it has none."""
    has_one = blessing.has_custom_property(VERDICT_PROPERTY)
    return blessing.get_string_custom_property(VERDICT_PROPERTY) if has_one else ""


def _visualization(kind: Any, page: Callable[[Any], str]) -> Any:
    """Makes a class for `InteractiveContext.show` that displays the page of an artifact type."""

    def shown(_: object, artifact: Any) -> None:
        display(HTML(page(artifact)))

    name = f"{kind.__name__}Visualization"
    return type(
        name, (tfx_private.ArtifactVisualization,), {"ARTIFACT_TYPE": kind, "display": shown}
    )


_OURS = (
    _visualization(tfx.types.standard_artifacts.Model, lambda model: model_page(model.uri)),
    _visualization(tfx.types.standard_artifacts.ModelRun, lambda run: model_run_page(run.uri)),
    _visualization(RunPage, lambda page: run_page(page.path)),
    # TFX's own visualization needs TFMA's widgets and their Jupyter extension.
    _visualization(
        tfx.types.standard_artifacts.ModelEvaluation, lambda found: evaluation_page(found.uri)
    ),
    _visualization(
        tfx.types.standard_artifacts.ModelBlessing,
        lambda blessing: blessing_page(is_blessed(blessing), verdict_of(blessing)),
    ),
)


def register() -> None:
    """Makes `InteractiveContext.show` display these pages.

    Every new InteractiveContext registers TFX's own visualization of a ModelEvaluation again, so call this after it has
    been made. `%load_ext tfx_tpu_trainer.workbench.notebook` does so by itself.
    """
    registry: Any = tfx_private.get_registry()
    for each in _OURS:
        registry.register(each)

"""Writes a project for the user's data: `tfx-tpu-trainer new` (docs/new-project.md)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer.workbench.new.arguments import (
    ScaffoldError,
    check_folder,
    parse_kinds,
    read_schema,
)
from tfx_tpu_trainer.workbench.new.reading import read_source

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.new.decisions import Decisions, Task
__all__ = ["ScaffoldError", "create_project"]


def create_project(
    folder: Path,
    *,
    data: Path,
    label: str,
    task: Task | None = None,
    schema: Path | None = None,
    types: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Decisions:
    """Writes a project for the user's data, completely or not at all.

    Args:
        folder: The project's folder, which must not exist.
        data: A CSV file, or a TFRecord file of tf.Examples. It stays in its place, and the project refers to it.
        label: The column to predict.
        task: "regression" or "classification". Defaults to `None`: decided by the label's values.
        schema: A BigQuery-like schema file, whose types win over the detected ones. Defaults to `None`.
        types: `COLUMN=KIND` settings, which win over the schema. Defaults to none.
        say: Called with a line before slow parts. Defaults to doing nothing.

    Returns:
        A description of each column's use.

    Raises:
        ScaffoldError: If no project can be made from the data.
        MissingExtraError: If the extra `new` is not installed.
    """
    check_folder(folder)
    kinds = None if schema is None else read_schema(schema)
    given = parse_kinds(types)
    with tempfile.TemporaryDirectory() as scratch:
        source = read_source(data, label=label, scratch=Path(scratch))
        if source.copied_for:
            say(
                f"{data} has {', '.join(source.copied_for)}, which CsvExampleGen can't read: the "
                f"project gets a copy that it can read, {folder / 'data' / source.path.name}"
            )
        say(f"{source.rows:,} rows of {len(source.columns):,} columns; TFDV measures them")
        with of_extra("new", for_what="tfx-tpu-trainer new"):
            from tfx_tpu_trainer.workbench.new.decisions import decide
            from tfx_tpu_trainer.workbench.new.measuring import measure
            from tfx_tpu_trainer.workbench.new.rendering import render
        table = measure(source)
        decisions = decide(table, label=label, task=task, kinds=kinds, types=given)
        render(folder, table, decisions)
    return decisions

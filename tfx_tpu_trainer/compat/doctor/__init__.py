"""Finds out what a `tf.estimator` program needs today, without running it.

`examine` reads one file, `repair` makes the mechanical edits, `examine_notebook` and
`repair_notebook` do so in notebooks, `python_files` lists what a path holds. Nothing here imports TensorFlow or TFX.
"""

from tfx_tpu_trainer.compat.doctor._examine import (
    NOTEBOOK,
    Repaired,
    Source,
    UnreadableError,
    examine,
    python_files,
    read_source,
    repair,
    write_source,
)
from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._notebooks import (
    NotANotebookError,
    examine_notebook,
    notebook_code,
    repair_notebook,
)
from tfx_tpu_trainer.compat.doctor._program import NotPythonError

__all__ = [
    "NOTEBOOK",
    "Finding",
    "NotANotebookError",
    "NotPythonError",
    "Repaired",
    "Source",
    "UnreadableError",
    "Verdict",
    "examine",
    "examine_notebook",
    "notebook_code",
    "python_files",
    "read_source",
    "repair",
    "repair_notebook",
    "write_source",
]

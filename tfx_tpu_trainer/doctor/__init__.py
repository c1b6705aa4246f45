"""Finds out what a `tf.estimator` program needs today, without running it.

`examine` reads one file, `repair` makes the mechanical edits, `examine_notebook` and
`repair_notebook` do so in notebooks, `python_files` lists what a path holds. Nothing here imports TensorFlow or TFX.
"""

from tfx_tpu_trainer.doctor.examine import examine
from tfx_tpu_trainer.doctor.findings import Finding, Verdict
from tfx_tpu_trainer.doctor.notebooks import (
    NotANotebookError,
    examine_notebook,
    repair_notebook,
)
from tfx_tpu_trainer.doctor.program import NotPythonError
from tfx_tpu_trainer.doctor.repair import Repaired, repair
from tfx_tpu_trainer.doctor.source_files import (
    Source,
    UnreadableError,
    python_files,
    read_source,
    write_source,
)

__all__ = [
    "Finding",
    "NotANotebookError",
    "NotPythonError",
    "Repaired",
    "Source",
    "UnreadableError",
    "Verdict",
    "examine",
    "examine_notebook",
    "python_files",
    "read_source",
    "repair",
    "repair_notebook",
    "write_source",
]

"""A program's strings, repaired as they are requested."""

from __future__ import annotations

import difflib
import importlib
import logging
import sys
from typing import Any

from tfx_tpu_trainer.compat.repairing import repair_cache, shown_lines
from tfx_tpu_trainer.compat.repairing.line_places import keep_lines
from tfx_tpu_trainer.compat.repairing.own_files import OwnFiles
from tfx_tpu_trainer.compat.repairing.repair_cache import Repair

_logger = logging.getLogger(__name__)


class Repairs:
    """Repairs the modules of one program, and switches TensorFlow 2's behaviour off for it.

    Attributes:
        files: The program's own files: no others are repaired.
        shown: Whether what is done is printed, to stderr.
    """

    def __init__(self, files: OwnFiles, *, shown: bool) -> None:
        """Keeps the program's files."""
        self.files = files
        self.shown = shown
        self._tensorflow: int | None = None
        self._texts: dict[str, str] = {}

    def text_to_run(self, path: str, original: str) -> str:
        """Returns a module's text with the doctor's edits, in the lines of the original."""
        if path in self._texts:
            return self._texts[path]
        repair = repair_cache.load(original)
        if repair is None:
            repair = _repaired(path, original)
        self._texts[path] = repair.text
        self._note_tensorflow(path, repair.tensorflow)
        if repair.text != original:
            shown_lines.show(path, repair.text)
            self._show_difference(path, original, repair.text)
        for each in repair.left:
            self._show(f"{path}, to edit by hand: {each}")
        return repair.text

    def _note_tensorflow(self, path: str, version: int | None) -> None:
        """Switches TensorFlow 2's behaviour off where the first module that tells is for TF 1.

        Where that is imported in the midst of a graph, or the program has switched eager execution
        off, it is left as it is.
        """
        if self._tensorflow is not None or version is None:
            return
        self._tensorflow = version
        tensorflow: Any = importlib.import_module("tensorflow")
        if version == 1 and tensorflow.executing_eagerly():
            _disable_v2_behavior(tensorflow)
            self._show(
                f"{path}: a program for TensorFlow 1, so tf.compat.v1.disable_v2_behavior() was "
                "called for it"
            )

    def _show_difference(self, path: str, original: str, text: str) -> None:
        if self.shown:
            lines = difflib.unified_diff(
                original.splitlines(),
                text.splitlines(),
                path,
                f"{path} (as it is run)",
                lineterm="",
            )
            self._show("\n".join(lines))

    def _show(self, text: str) -> None:
        if self.shown:
            print(text, file=sys.stderr, flush=True)


def _disable_v2_behavior(tensorflow: Any) -> None:
    log = tensorflow.get_logger()
    level = log.level
    # It says that it is deprecated, to a user who did not call it.
    log.setLevel(logging.ERROR)
    try:
        tensorflow.compat.v1.disable_v2_behavior()
    finally:
        log.setLevel(level)


def _repaired(path: str, original: str) -> Repair:
    doctor = importlib.import_module("tfx_tpu_trainer.compat.doctor")
    try:
        found = doctor.repair(original)
    except doctor.NotPythonError:
        # Python says it better, when it compiles the text.
        return Repair(original, None)
    except (Exception, RecursionError) as error:
        _logger.warning("%s runs unrepaired, because the doctor failed on it: %r.", path, error)
        return Repair(original, None)
    text = found.text if found.text == original else keep_lines(original, found.text)
    left = (each for each in found.left if each.verdict is doctor.Verdict.EDIT)
    told = tuple(f"line {each.line}, {each.name}: {each.edit}" for each in left)
    repair = Repair(text, found.tensorflow, told)
    repair_cache.keep(original, repair)
    return repair

"""The package `tensorflow_estimator` by its private paths, which programs import from all the same.

`tfx_tpu_trainer.compat` answers those of `original_names.MODULES`.
"""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat._original_names import MODULES
from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice

_THEME: Final = "estimators"
# Where programs of different ages find the modules below.
ROOTS: Final = {
    "tensorflow_estimator.python.estimator": "",
    "tensorflow.python.estimator": "",
    "tensorflow.python.tpu": "tpu.",
}


def advice_on(name: str) -> Advice | None:
    """Returns what becomes of a name of the original's package."""
    root = next((each for each in ROOTS if name == each or name.startswith(f"{each}.")), None)
    if root is None:
        return None
    below = ROOTS[root] + name[len(root) + 1 :]
    answered = _is_answered(below)
    if root == "tensorflow.python.tpu" and not answered:
        # Most of that folder is TensorFlow's own, and still there.
        return None
    if answered:
        return Advice(
            _THEME,
            Verdict.WORKS,
            "A private path of the original's package, which can't be imported beside TensorFlow >= 2.16; "
            "tfx_tpu_trainer.compat answers it.",
        )
    return Advice(
        _THEME,
        Verdict.EDIT,
        "A private name of the original's package, which can't be imported beside TensorFlow >= 2.16.",
        "look for a public name in tfx_tpu_trainer.estimator",
    )


def _is_answered(below: str) -> bool:
    for module, names in MODULES.items():
        if below == "" or module == below or module.startswith(f"{below}."):
            return True
        if below.startswith(f"{module}."):
            return below[len(module) + 1 :].partition(".")[0] in names
    return False

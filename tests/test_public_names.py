"""The public API is the `__all__` of the faces, and a name leaves it only on purpose."""

import importlib
from pathlib import Path

import pytest

# `face:name` for each public name. A name that is taken away belongs into CHANGELOG.md, with what to use instead.
NAMES = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8").split()

FACES = (
    "",
    *(".compat", ".compat.doctor", ".compat.tfma_export", ".compat.contrib"),
    *(f".compat.contrib.{part}" for part in ("framework", "layers", "metrics", "slim", "training")),
    ".components",
    *(
        f".components.{part}"
        for part in ("clusters", "evaluation", "inputs", "report", "tuning", "user_module")
    ),
    ".estimator",
    *(
        f".estimator.{part}"
        for part in ("experimental", "export", "extending", "inputs", "tpu", "v1")
    ),
    *(".estimator.tpu.experimental", ".estimator.v1.experimental"),
    *(
        ".hardware",
        ".preflight",
        ".serving",
        ".workbench.new",
        ".workbench.notebook",
        ".workbench.project",
    ),
)


@pytest.mark.parametrize("face", FACES)
def test_the_names_of_a_face_are_those_listed(face):
    module = importlib.import_module(f"tfx_tpu_trainer{face}")
    listed = {name for path, _, name in (each.partition(":") for each in NAMES) if path == face}
    assert set(module.__all__) == listed, "list them in tests/public_names.txt"
    # `from ... import *` looks each one up.
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_each_listed_name_is_of_a_face():
    assert {name.partition(":")[0] for name in NAMES} == set(FACES)

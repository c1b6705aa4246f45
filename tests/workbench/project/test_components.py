"""How a pipeline's preprocessing module is given to Transform."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tfx_tpu_trainer.workbench.project.components import preprocessing
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline

MODULE = "rides_of_ours.preprocessing"
CODE = "def preprocessing_fn(inputs):\n    return inputs\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the module."""
    package = tmp_path / "rides_of_ours"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "preprocessing.py").write_text(CODE)
    (package / "words.py").write_text("WORDS = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    # An earlier test's is another one.
    sys.modules.pop(package.name, None)
    return package


def arguments(**values: Any) -> dict[str, Any]:
    taxi = find_pipeline("taxi")
    return preprocessing(load_config(taxi.config_class(), taxi.config_file, values=values), MODULE)


def test_the_module_is_named_by_its_import_path(folder: Path) -> None:
    assert arguments()["preprocessing_fn"] == f"{MODULE}.preprocessing_fn"
    assert arguments() == arguments()


@pytest.mark.parametrize("name", ["preprocessing.py", "words.py"])
def test_an_edit_is_another_argument_so_that_the_cache_is_not_asked(
    folder: Path, name: str
) -> None:
    before = arguments()
    (folder / name).write_text("WORDS = 4\n")
    assert arguments() != before


def test_code_that_has_moved_to_another_file_is_another_argument(folder: Path) -> None:
    before = arguments()
    (folder / "words.py").rename(folder / "numbers.py")
    assert arguments() != before


def test_a_model_outside_of_the_folder_may_be_edited(folder: Path) -> None:
    before = arguments()
    (folder.parent / "model.py").write_text("LAYERS = 2\n")
    assert arguments() == before


def test_a_file_is_left_to_tfx(folder: Path) -> None:
    assert arguments(user_code="file") == {"module_file": str(folder / "preprocessing.py")}


@pytest.mark.parametrize("user_code", ["import", "file"])
def test_a_module_that_is_not_there_is_told_when_the_pipeline_is_made(
    folder: Path, user_code: str
) -> None:
    (folder / "preprocessing.py").unlink()
    with pytest.raises(ValueError, match=r"'rides_of_ours.preprocessing' can't be found"):
        arguments(user_code=user_code)

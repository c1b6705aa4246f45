"""Which files are repaired, how repairs are kept between runs, and on which lines they stand."""

from __future__ import annotations

import ast
import json
import sysconfig

import click
import pytest

import tfx_tpu_trainer
from tests.compat.doctor.corpus_files import PROGRAMS, text_of
from tfx_tpu_trainer.compat import _repairs
from tfx_tpu_trainer.compat._repairs import (
    OwnFiles,
    Repair,
    Repairs,
    files_of_module,
    files_of_program,
    keep_lines,
)
from tfx_tpu_trainer.compat.doctor import repair


@pytest.fixture
def project(tmp_path):
    for name in (
        "train.py",
        "lib/a.py",
        "pack/__init__.py",
        "pack/sub/__init__.py",
        "pack/sub/run.py",
        "pack/model.py",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        "vendor/site-packages/y.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def _own(files: OwnFiles, project) -> set[str]:
    paths = {path.relative_to(project).as_posix(): path for path in project.rglob("*.py")}
    return {name for name, path in paths.items() if str(path) in files}


EVERYTHING = {"train.py", "lib/a.py", "pack/__init__.py", "pack/sub/__init__.py"}
EVERYTHING |= {"pack/sub/run.py", "pack/model.py"}


@pytest.mark.parametrize("program", ["train.py", "pack/sub/run.py", ""])
def test_a_program_s_are_those_below_its_folder_or_package(project, program):
    assert _own(files_of_program(str(project / program)), project) == EVERYTHING


def test_a_link_leads_to_its_program(project, tmp_path_factory):
    link = tmp_path_factory.mktemp("elsewhere") / "link.py"
    link.symlink_to(project / "train.py")
    files = files_of_program(str(link))
    assert str(project / "lib" / "a.py") in files
    assert str(link) in files


def test_a_module_s_are_those_of_its_package(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    assert _own(files_of_module("pack.sub.run"), project) == {
        name for name in EVERYTHING if name.startswith("pack/")
    }
    assert _own(files_of_module("train"), project) == EVERYTHING
    assert files_of_module("no_such_module").roots == ()


def test_libraries_are_nobody_s(monkeypatch):
    library = sysconfig.get_path("stdlib")
    # A file that stands among installed ones is a program alone; a package, as a whole.
    assert files_of_module("this").roots == (f"{library}/this.py",)
    assert click.__file__ in files_of_module("click.core")
    assert pytest.__file__ not in files_of_module("click.core")
    assert tfx_tpu_trainer.__file__ not in OwnFiles(["/"])


ORIGINAL = "import tensorflow as tf\nfor key in {'é': 1}.iterkeys():\n    pass\n"
REPAIRED = ORIGINAL.replace("iterkeys", "keys")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tfx_tpu_trainer" / "repairs"


def _text(path: str = "program.py", original: str = ORIGINAL) -> str:
    return Repairs(OwnFiles([]), shown=False).text_to_run(path, original)


def test_a_kept_repair_is_used(folder):
    assert _repairs.load_repair(ORIGINAL) is None
    assert _text() == REPAIRED
    assert _repairs.load_repair(ORIGINAL) == Repair(REPAIRED, None)
    (file,) = folder.iterdir()
    assert file.suffix == ".json"
    # By its content: another text has none.
    assert _repairs.load_repair(ORIGINAL + "\n") is None


def test_it_is_one_for_each_version_of_the_doctor(monkeypatch):
    _repairs.keep_repair(ORIGINAL, Repair("x = 1\n", None))
    assert _text() == "x = 1\n"
    monkeypatch.setattr(_repairs, "_makers_digest", lambda: "another")
    assert _text() == REPAIRED


def test_a_repair_that_can_not_be_read_is_made_anew(folder):
    for damage in ("", "{", "[]", '{"text": "import os\\n", "tensorflow": null, "digest": "x"}'):
        _repairs.keep_repair(ORIGINAL, Repair(REPAIRED, None))
        (file,) = folder.iterdir()
        file.write_text(damage, encoding="utf-8")
        assert _repairs.load_repair(ORIGINAL) is None
        assert _text() == REPAIRED
        assert json.loads(file.read_text(encoding="utf-8"))["text"] == REPAIRED
    file.write_bytes(b"\xff\xfe")
    assert _text() == REPAIRED


def test_what_is_left_to_be_edited_is_shown_each_time(capsys):
    original = "import tensorflow as tf\nx = tf.contrib.nccl\n"
    for _ in range(2):
        repairs = Repairs(OwnFiles([]), shown=True)
        # TensorFlow's behaviour is to stay: this process goes on with other tests.
        repairs._tensorflow = 2
        repairs.text_to_run("program.py", original)
        assert (
            "program.py, to edit by hand: line 2, tf.compat.v1.contrib.nccl: "
            in capsys.readouterr().err
        )


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _text() == REPAIRED
    assert _repairs.load_repair(ORIGINAL) is None


def test_without_the_variable_it_is_below_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _repairs.cache_folder() == tmp_path / ".cache" / "tfx_tpu_trainer" / "repairs"


@pytest.mark.parametrize(
    ("original", "repaired", "laid"),
    [
        # An import that is added below, above, and below one with a comment.
        (
            "import a\n\nx = a.y\n",
            "import a\nimport b\n\nx = b.y\n",
            "import a; import b\n\nx = b.y\n",
        ),
        ("import os\nx = y\n", "from b import y\nimport os\nx = y\n", None),
        ("import a  # why\nx = 1\n", "import a  # why\nimport b\nx = 1\n", None),
        # A statement that went, and a call that got shorter, within brackets.
        ("import a\nimport b\nx = 1\n", "import b\nx = 1\n", "\nimport b\nx = 1\n"),
        (
            "x = f(\n    a(1,\n      2),\n    3)\ny = 1\n",
            "x = f(\n    b(1),\n    3)\ny = 1\n",
            None,
        ),
        # In a block.
        (
            "if x:\n    import a\n    y = 1\n",
            "if x:\n    import a\n    from b import c\n    y = 1\n",
            "if x:\n    import a; from b import c\n    y = 1\n",
        ),
        ("x = 1\n", "x = 1\n", "x = 1\n"),
    ],
)
def test_lines_stay_where_they_are(original, repaired, laid):
    result = keep_lines(original, repaired)
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(repaired))
    assert result.count("\n") == original.count("\n")
    if laid is not None:
        assert result == laid


def test_a_text_that_can_not_be_laid_out_is_as_it_was_repaired():
    original, repaired = "x = 1\n", "x = 1\nwhile x:\n    x = 0\n"
    assert keep_lines(original, repaired) == repaired


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_doctors_programs_keep_theirs(program):
    original = text_of(program)
    repaired = repair(original).text
    laid = keep_lines(original, repaired)
    assert ast.dump(ast.parse(laid)) == ast.dump(ast.parse(repaired))
    assert laid.count("\n") == original.count("\n")

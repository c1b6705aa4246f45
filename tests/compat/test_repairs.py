"""Which files are repaired, how repairs are kept between runs, and on which lines they stand."""

import ast
import importlib
import inspect
import json
import sys
import sysconfig
import traceback
import zipfile

import click
import pytest
import tensorflow as tf

import tfx_tpu_trainer
from tfx_tpu_trainer.compat import _repairs
from tfx_tpu_trainer.compat._repairs import (
    OwnFiles,
    Repair,
    RepairingFinder,
    Repairs,
    files_of_module,
    files_of_program,
    keep_lines,
)


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
    # A file among installed ones is a program by itself; a package, as a whole.
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
        # TensorFlow's behaviour must stay, since this process runs other tests.
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


# In both versions of TensorFlow, so its behaviour stays as it is.
MODULE = '''"""A module."""
import tensorflow as tf

from tensorflow.contrib.tpu import RunConfig


def keys(values):
    return list(values.iterkeys())


def fail(values):
    values.iteritems().nothing
'''
NAMES = ("own_module", "own_package", "own_package.inner", "its_neighbour")


@pytest.fixture
def repairs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Repairs(OwnFiles([str(tmp_path / "program")]), shown=True)
    # The program is for TensorFlow 1; the tests around this one are not.
    made._tensorflow = 2
    monkeypatch.setattr(sys, "meta_path", [RepairingFinder(made), *sys.meta_path])
    yield made
    for name in NAMES:
        sys.modules.pop(name, None)


def _write(folder, files: dict[str, str]):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.usefixtures("repairs")
def test_a_module_is_repaired_and_its_folder_stays(tmp_path, monkeypatch, capsys):
    files = {"own_module.py": MODULE, "own_package/__init__.py": "", "own_package/inner.py": MODULE}
    folder = _write(tmp_path / "program", files)
    other = _write(
        tmp_path / "other", {"its_neighbour.py": "import tensorflow\nVALUE = [].iterkeys\n"}
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(other))
    for name in ("own_module", "own_package.inner"):
        module = importlib.import_module(name)
        assert module.keys({"a": 1}) == ["a"]
        assert module.RunConfig.__module__.startswith("tfx_tpu_trainer.estimator.tpu")
        assert module.__file__ == str(folder / f"{name.replace('.', '/')}.py")
        assert "values.keys()" in inspect.getsource(module.keys)
        with pytest.raises(AttributeError, match="no attribute 'nothing'") as raised:
            module.fail({"a": 1})
        last = traceback.extract_tb(raised.value.__traceback__)[-1]
        assert (last.lineno, last.line) == (12, "values.items().nothing")
    with pytest.raises(AttributeError, match="iterkeys"):
        importlib.import_module("its_neighbour")
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == set(files)
    shown = capsys.readouterr().err
    assert shown.count("+    return list(values.keys())") == 2
    assert "its_neighbour" not in shown


@pytest.mark.usefixtures("repairs")
def test_an_archive_is_repaired(tmp_path, monkeypatch):
    (tmp_path / "program").mkdir()
    archive = tmp_path / "program" / "app.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("own_module.py", MODULE)
        file.writestr("own_package/__init__.py", "")
        file.writestr("own_package/inner.py", MODULE)
    monkeypatch.syspath_prepend(str(archive))
    for name in ("own_module", "own_package.inner"):
        module = importlib.import_module(name)
        assert module.keys({"a": 1}) == ["a"]
        assert "values.keys()" in inspect.getsource(module.keys)


@pytest.mark.usefixtures("repairs")
@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"import tensorflow\nprint 'x'\n", "Missing parentheses"),
        (b"# coding: nonsense\nimport tensorflow\n", "nonsense"),
        (b"import tensorflow\nx = '\xff'\n", "utf-8"),
    ],
    ids=["python_2", "unknown_encoding", "wrong_encoding"],
)
def test_what_is_no_python_is_pythons_error(tmp_path, monkeypatch, content, error):
    folder = _write(tmp_path / "program", {})
    folder.mkdir()
    (folder / "own_module.py").write_bytes(content)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(SyntaxError, match=error):
        importlib.import_module("own_module")


@pytest.mark.usefixtures("repairs")
def test_other_encodings_are_read(tmp_path, monkeypatch):
    folder = _write(tmp_path / "program", {})
    folder.mkdir()
    text = "# -*- coding: latin-1 -*-\r\nimport tensorflow\r\nVALUE = {'é': 1}.keys()\r\n"
    (folder / "own_module.py").write_bytes(text.encode("latin-1"))
    monkeypatch.syspath_prepend(str(folder))
    assert list(importlib.import_module("own_module").VALUE) == ["é"]


def test_a_module_imported_in_the_midst_of_a_graph_leaves_the_behaviour_alone(repairs, tmp_path):
    repairs._tensorflow = None
    with tf.Graph().as_default():
        text = repairs.text_to_run(
            str(tmp_path / "a.py"), "import tensorflow as tf\ntf.placeholder\n"
        )
    assert text.startswith("import tensorflow.compat.v1 as tf")
    assert tf.executing_eagerly()
    assert not isinstance(tf.TensorShape([1])[0], tf.compat.v1.Dimension)

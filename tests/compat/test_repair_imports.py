"""A program's modules, imported with their repairs, in this process."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
import zipfile

import pytest
import tensorflow as tf

from tfx_tpu_trainer.compat._repair_imports import RepairingFinder
from tfx_tpu_trainer.compat._repairs import OwnFiles, Repairs

# In both versions of TensorFlow, so that its behaviour stays as it is.
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

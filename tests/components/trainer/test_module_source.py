"""Tests finding, hashing, loading and checking the user's module."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import types
import zipfile

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer._support.messages import ModuleFailedError
from tfx_tpu_trainer.components.trainer.module_source import (
    ModuleSource,
    imported,
    source_hash,
    source_texts,
)
from tfx_tpu_trainer.components.user_module._module import check_module


@contextlib.contextmanager
def opened(source):
    with imported(source) as module:
        yield check_module(module)


def _write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_a_module_file_is_loaded(tmp_path):
    path = _write(tmp_path, "m.py", "def model_fn(features, params): return 3\nparams = {'a': 1}\n")
    with opened(ModuleSource(file=str(path))) as module:
        assert module.model_fn(None, None) == 3
        assert module.params_for(None) == {"a": 1}
        assert not module.takes_labels


def test_an_import_path_is_loaded_again_after_an_edit(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = _write(tmp_path, "edited_model.py", "def model_fn(features, params): return 1\n")
    source = ModuleSource(module="edited_model")
    with opened(source) as module:
        assert module.model_fn(None, None) == 1
    path.write_text("def model_fn(features, params): return 1000\n")
    with opened(source) as module:
        assert module.model_fn(None, None) == 1000


def _wheel(folder, **modules):
    """Builds a wheel of modules, like TFX's of a module_file and its neighbours."""
    folder.mkdir()
    for name, text in modules.items():
        _write(folder, f"{name}.py", text)
    _write(
        folder,
        "setup.py",
        "import setuptools\n"
        f"setuptools.setup(name='m', version='1', py_modules={sorted(modules)!r})\n",
    )
    subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    assert set(zipfile.ZipFile(wheel).namelist()) >= {f"{name}.py" for name in modules}
    return wheel


_MODEL_WITH_HELPER = """
def model_fn(features, params):
    import helper
    return helper.VALUE
"""


def test_wheels_with_modules_of_the_same_names_get_their_own(tmp_path, monkeypatch):
    first = _wheel(
        tmp_path / "1", model=_MODEL_WITH_HELPER + "\nparams = {'a': 1}\n", helper="VALUE = 7\n"
    )
    second = _wheel(tmp_path / "2", model=_MODEL_WITH_HELPER, helper="VALUE = 8\n")
    # A folder that is before TFX's on the path, and a module of the name that is imported already.
    monkeypatch.syspath_prepend(str(tmp_path / "1"))
    monkeypatch.setitem(sys.modules, "model", types.ModuleType("model"))
    path, other = list(sys.path), sys.modules["model"]
    with opened(ModuleSource(wheel=f"model@{second}")) as module:
        # Imported inside model_fn, while the wheel is open.
        assert module.model_fn(None, None) == 8
        assert module.params_for(None) == {}
    with opened(ModuleSource(wheel=f"model@{first}")) as module:
        assert module.model_fn(None, None) == 7
        assert module.params_for(None) == {"a": 1}
    assert sys.path == path
    assert sys.modules["model"] is other
    assert "helper" not in sys.modules


def test_a_module_file_imports_what_is_beside_it(tmp_path):
    _write(tmp_path, "beside_helper.py", "VALUE = 9\n")
    path = _write(tmp_path, "m.py", _MODEL_WITH_HELPER.replace("helper", "beside_helper"))
    with opened(ModuleSource(file=str(path))) as module:
        assert module.model_fn(None, None) == 9


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"module_path": "m@/a/m.whl", "module_file": None}, ModuleSource(wheel="m@/a/m.whl")),
        ({"module_path": "package.m"}, ModuleSource(module="package.m")),
        ({"module_file": "/a/m.py"}, ModuleSource(file="/a/m.py")),
        ({"module": "package.m"}, ModuleSource(module="package.m")),
        ({"run_fn": "package.m.run_fn"}, ModuleSource(module="package.m")),
    ],
)
def test_the_module_is_found_in_either_components_properties(properties, expected):
    assert ModuleSource.from_exec_properties(properties) == expected


@row("modules", "no module at all", "no user module was given; set module_file='", "or module='")
def test_no_module_at_all(refused):
    with refused(ValueError):
        ModuleSource.from_exec_properties({"module_file": None})


def _unloadable(given, content, reason):
    content = content if isinstance(content, bytes) else content.encode()
    says = "broken.py' can't be loaded: ", reason, "check that it runs by itself"
    return case("modules", f"a module {given}", "the module '", *says, values=content)


@pytest.mark.parametrize(
    "content",
    [
        _unloadable(
            "that imports what is not there", "import no_such\n", "No module named 'no_such'"
        ),
        _unloadable("with an open bracket", "x = (\n", "SyntaxError: '(' was never closed"),
        _unloadable(
            "with a wrong indent", "def f():\nreturn 1\n", "IndentationError: expected an ind"
        ),
        _unloadable(
            "with tabs and spaces", "if 1:\n\tx = 1\n        y = 2\n", "TabError: inconsistent"
        ),
        _unloadable(
            "with a NUL byte", b"x = 1\0\n", "source code string cannot contain null bytes"
        ),
        _unloadable(
            "that is not UTF-8", b"x = '\xff'\n", "SyntaxError: (unicode error) 'utf-8' codec"
        ),
        _unloadable("of 500 brackets", "(" * 500, "SyntaxError: too many nested parentheses"),
        _unloadable(
            "that calls itself forever", "def f(): f()\nf()\n", "RecursionError: maximum recu"
        ),
        _unloadable("that raises two lines", "raise ValueError('a\\nb')\n", "ValueError: a b; "),
    ],
)
def test_a_module_that_cannot_be_loaded_says_why(tmp_path, content, refused):
    path = tmp_path / "broken.py"
    path.write_bytes(content)
    with refused(ValueError), opened(ModuleSource(file=str(path))):
        pass


@pytest.mark.parametrize(
    "source",
    [
        case(
            "modules",
            "a `module_file` that is not there",
            "module_file='/no/m.py' is not a Python file on this machine; give the path of a .py "
            "file",
            values={"file": "/no/m.py"},
        ),
        case(
            "modules",
            "a `module_file` that is not a .py file",
            "module_file='/etc/passwd' is not a Python file on this machine; give the path of a "
            ".py file",
            values={"file": "/etc/passwd"},
        ),
        case(
            "modules",
            "an import path that leads nowhere",
            "the module 'no.such.module' can't be loaded: ModuleNotFoundError: No module named 'no'",
            values={"module": "no.such.module"},
        ),
    ],
)
def test_a_module_that_is_not_there(source, refused):
    with refused(ValueError), opened(ModuleSource(**source)):
        pass


@row(
    "modules",
    "a module's wheel that is not a wheel",
    "the module's wheel",
    "m-1.0-py3-none-any.whl can't be installed (pip's output above has the reason); create the pipeline "
    "again",
)
def test_a_wheel_that_cannot_be_installed(tmp_path, refused):
    wheel = tmp_path / "m-1.0-py3-none-any.whl"
    wheel.write_bytes(b"no zip")
    with refused(ValueError), opened(ModuleSource(wheel=f"m@{wheel}")):
        pass


@pytest.mark.parametrize(
    ("text", "call"),
    [
        case(
            "modules",
            "a function `params` that looks up what is not there",
            "params of module 'failing' fails at",
            "failing.py:2: KeyError: 'rate'",
            values=("def params(fn_args):\n    return {}['rate']\n", lambda m: m.params(None)),
        ),
        case(
            "modules",
            "an input_fn that raises StopIteration",
            "input_fn of module 'failing' fails at",
            "failing.py:2: StopIteration",
            values=("def input_fn(params):\n    return next(iter([]))\n", lambda m: m.input_fn({})),
        ),
        case(
            "modules",
            "a model_fn of tensors whose shapes don't fit",
            "model_fn of module 'failing' fails at",
            "failing.py:3: ValueError: Dimensions must be equal, but are 1 and 3 for 'MatMul' with input",
            values=(
                "import tensorflow as tf\ndef model_fn(x):\n    tf.matmul(x, tf.zeros([3, 4]))\n",
                lambda m: _in_graph(lambda: m.model_fn(tf.zeros([2, 1]))),
            ),
        ),
        case(
            "modules",
            "a helper beside the module that fails",
            "model_fn of module 'failing' fails at",
            "helper_that_fails.py:2: ZeroDivisionError: division by zero",
            values=(
                "import helper_that_fails\ndef model_fn():\n    helper_that_fails.width(0)\n",
                lambda m: m.model_fn(),
            ),
        ),
        case(
            "modules",
            "a function of the input that fails in AutoGraph",
            "input_fn of module 'failing' fails at",
            "KeyError: 'fare'",
            values=(
                (
                    "import tensorflow as tf\n"
                    "def parse(row):\n    return {'tip': row}['fare']\n"
                    "def input_fn():\n    return tf.data.Dataset.range(3).map(parse)\n"
                ),
                lambda m: _in_graph(m.input_fn),
            ),
        ),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(tmp_path, text, call, refused):
    path = _write(tmp_path, "failing.py", text)
    _write(tmp_path, "helper_that_fails.py", "def width(n):\n    return 1 / n\n")
    with refused(ModuleFailedError), imported(ModuleSource(file=str(path))) as module:
        call(module)


def _in_graph(function):
    with tf.Graph().as_default():
        return function()


@pytest.mark.parametrize("error", [OSError, ConnectionError])
def test_what_the_machine_says_passes_as_it_is(tmp_path, error):
    path = _write(tmp_path, "failing.py", f"def input_fn():\n    raise {error.__name__}('gone')\n")
    with pytest.raises(error, match="gone"), imported(ModuleSource(file=str(path))) as module:
        module.input_fn()


class TestSourceHash:
    def test_an_edit_changes_it(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))
        path = _write(tmp_path, "hashed_model.py", "x = 1\n")
        before = source_hash("hashed_model")
        assert before == source_hash("hashed_model")
        path.write_text("x = 2\n")
        assert source_hash("hashed_model") != before

    def test_a_helper_in_the_same_package_counts_and_other_files_do_not(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.syspath_prepend(str(tmp_path))
        package = tmp_path / "hashed_package"
        package.mkdir()
        for name in ("__init__.py", "model.py", "layers.py"):
            _write(package, name, "")
        before = source_hash("hashed_package.model")
        _write(package, "notes.txt", "a")
        _write(tmp_path, "beside.py", "a = 1")
        assert source_hash("hashed_package.model") == before
        _write(package, "layers.py", "width = 8\n")
        assert source_hash("hashed_package.model") != before

    def test_the_text_of_the_same_files_is_kept(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))
        package = tmp_path / "kept_package"
        package.mkdir()
        files = {name: f"x = {name!r}\n" for name in ("__init__.py", "layers.py", "model.py")}
        for name, text in files.items():
            _write(package, name, text)
        assert source_texts(ModuleSource(module="kept_package.model")) == files
        alone = _write(tmp_path, "alone.py", "y = 1\n")
        assert source_texts(ModuleSource(file=str(alone))) == {"alone.py": "y = 1\n"}
        assert source_texts(ModuleSource(module="alone")) == {"alone.py": "y = 1\n"}
        wheel = _wheel(tmp_path / "wheel", model="z = 1\n", helper="z = 2\n")
        expected = {"helper.py": "z = 2\n", "model.py": "z = 1\n"}
        assert source_texts(ModuleSource(wheel=f"model@{wheel}")) == expected

    def test_the_module_is_not_run(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))
        _write(tmp_path, "explosive_model.py", "raise RuntimeError\n")
        assert len(source_hash("explosive_model")) == 64

    @pytest.mark.parametrize(
        "name",
        [
            case(
                "modules",
                f"`module={name!r}`",
                f"module={name!r} {says}",
                values=name,
            )
            for name, says in (
                ("no_such_model", "can't be found; give an import path like 'package.model'"),
                ("no_such_package.model", "can't be imported: No module named 'no_such_package'"),
                (".model", "can't be imported: no package specified for '.model'"),
                (
                    "math",
                    "has no .py file, so edits of it would go unnoticed; give a module with a source file",
                ),
            )
        ],
    )
    def test_an_unknown_module(self, name, refused):
        with refused(ValueError):
            source_hash(name)

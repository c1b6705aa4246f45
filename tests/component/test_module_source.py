"""The user's module: found, hashed, loaded and checked."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import types
import zipfile

import pytest

from tfx_tpu_trainer.component.module_source import ModuleSource, imported, source_hash
from tfx_tpu_trainer.inputs.user_module import check_module


def _module(**names):
    module = types.ModuleType("some_model")
    vars(module).update(names)
    return module


def _model_fn(features, labels, mode, params):
    return features, labels, mode, params


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
    """Builds a wheel of modules, as TFX does of a module_file and what is beside it."""
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


def test_no_module_at_all():
    with pytest.raises(ValueError, match="no user module is given; set module_file="):
        ModuleSource.from_exec_properties({"module_file": None})


def test_without_model_fn_its_functions_are_listed():
    module = _module(build_model=_model_fn, run_fn=_model_fn, _hidden=_model_fn)
    message = (
        r"module 'some_model' has no model_fn; define model_fn\(features, labels, mode, params\) "
        r"in it \(its functions are: build_model, run_fn\)"
    )
    with pytest.raises(ValueError, match=message):
        check_module(module)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"model_fn": lambda features, lables, params: None},
            (
                r"model_fn of module 'some_model' has an argument 'lables' that nothing is passed "
                r"for, it takes \(features, lables, params\); allowed are features, labels, mode"
            ),
        ),
        (
            {"model_fn": lambda features, labels: None},
            r"model_fn of module 'some_model' has no argument 'params', .* params\['batch_size'\]",
        ),
        ({"model_fn": lambda labels, params: None}, "model_fn .* has no argument 'features'"),
        ({"model_fn": 3}, "model_fn of module 'some_model' is 3; make it a function"),
        (
            {"model_fn": _model_fn, "input_fn": lambda files, params: None},
            "input_fn of module 'some_model' has an argument 'files' .* params, mode, config, fn_args",
        ),
        ({"model_fn": _model_fn, "input_fn": lambda: None}, "input_fn .* has no argument 'params'"),
        (
            {"model_fn": _model_fn, "serving_input_receiver_fn": lambda a: None},
            "serving_input_receiver_fn of module 'some_model' has an argument 'a'",
        ),
        (
            {"model_fn": _model_fn, "params": 3},
            "params of module 'some_model' is 3; make it a dict",
        ),
    ],
)
def test_arguments_that_nobody_can_give_are_refused(names, message):
    with pytest.raises(ValueError, match=message) as caught:
        check_module(_module(**names))
    assert "\n" not in str(caught.value)


def test_bound_arguments_of_a_partial_do_not_count():
    def model_fn(features, labels, mode, params, depth):
        return depth

    module = check_module(_module(model_fn=functools.partial(model_fn, depth=3)))
    assert module.takes_labels


def test_functions_get_what_they_ask_for():
    module = check_module(
        _module(
            model_fn=_model_fn,
            input_fn=lambda params, mode, fn_args: (params, mode, fn_args),
            serving_input_receiver_fn=lambda fn_args: fn_args,
            params=lambda fn_args: {"from": fn_args},
        )
    )
    assert module.input_fn_for("train", "args")({"batch_size": 2}) == (
        {"batch_size": 2},
        "train",
        "args",
    )
    assert module.serving_receiver_for("args")() == "args"
    assert module.params_for("args") == {"from": "args"}


def test_config_is_passed_on_where_the_input_fn_takes_it():
    module = check_module(
        _module(model_fn=_model_fn, input_fn=lambda params, config: (params, config))
    )
    assert module.input_fn_for("eval", None)(params=1, config=2) == (1, 2)


def test_params_must_be_a_dict():
    module = check_module(_module(model_fn=_model_fn, params=lambda fn_args: [1]))
    with pytest.raises(ValueError, match=r"params of module 'some_model' gave \[1\]; it must give"):
        module.params_for(None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("import no_such_thing\n", "No module named 'no_such_thing'"), ("x = (\n", "SyntaxError")],
)
def test_a_module_that_cannot_be_loaded_says_why(tmp_path, text, reason):
    path = _write(tmp_path, "broken.py", text)
    message = f"the module '{path}' can't be loaded: .*{reason}"
    with (
        pytest.raises(ValueError, match=message),
        opened(ModuleSource(file=str(path))),
    ):
        pass


def test_a_missing_file():
    with (
        pytest.raises(ValueError, match=r"module_file='/no/m\.py' is no Python file here"),
        opened(ModuleSource(file="/no/m.py")),
    ):
        pass


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

    def test_the_module_is_not_run(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))
        _write(tmp_path, "explosive_model.py", "raise RuntimeError\n")
        assert len(source_hash("explosive_model")) == 64

    @pytest.mark.parametrize("name", ["no_such_model", "no_such_package.model", ".model"])
    def test_an_unknown_module(self, name):
        with pytest.raises(ValueError, match=f"module='{name}' can't be "):
            source_hash(name)

    def test_a_module_without_source(self):
        with pytest.raises(ValueError, match=r"module='math' has no \.py file"):
            source_hash("math")

"""Tests a user's module: its functions, their arguments, and that SystemExit never looks like a success."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types

import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer.components.user_module._module import (
    ModuleExitedError,
    check_module,
    exits_are_errors,
    imported_from,
)


@pytest.mark.parametrize(
    "code",
    [
        case(
            "modules",
            f"a module that calls `sys.exit({code!r})`",
            f"the module 'model' ended the process by SystemExit({code!r}) at",
            "raise an exception that explains the error, or return",
            values=code,
        )
        for code in (None, 0, 3, "no data today")
    ],
)
def test_sys_exit_is_an_error_that_names_the_module_the_code_and_the_line(code, refused):
    line = inspect.currentframe().f_lineno + 2
    with refused(ModuleExitedError) as caught, _model_exits():
        sys.exit(code)
    assert f"SystemExit({code!r}) at {__file__}:{line};" in str(caught.value)


def _model_exits():
    return exits_are_errors("model")


def test_an_interrupt_passes_as_it_is():
    with pytest.raises(KeyboardInterrupt), exits_are_errors("model"):
        raise KeyboardInterrupt


def _print_for_nobody():
    """Ends like rich after its reader has gone: `tfx-tpu-trainer preflight | head`."""
    try:
        raise BrokenPipeError
    except BrokenPipeError:
        sys.exit(1)


def test_output_that_nobody_reads_is_not_the_modules_matter():
    with pytest.raises(SystemExit), exits_are_errors("model"):
        _print_for_nobody()


def _module(**names):
    module = types.ModuleType("some_model")
    vars(module).update(names)
    return module


def _model_fn(features, labels, mode, params):
    return features, labels, mode, params


def _takes(*names):
    return eval(f"lambda {', '.join(names)}: None")


@pytest.mark.parametrize(
    "names",
    [
        case(
            "modules",
            "a module of other functions",
            "module 'some_model' has no model_fn; define model_fn(features, labels, mode, params) in it",
            "or build_model(params) that returns a compiled Keras model (its functions are: make, run_fn",
            values={"make": _model_fn, "run_fn": _model_fn, "_hidden": _model_fn},
        ),
        case(
            "modules",
            "a model_fn and a build_model",
            "module 'some_model' has a model_fn and a build_model, which is ambiguous: leave one of them out",
            values={"model_fn": _model_fn, "build_model": _takes("params")},
        ),
        case(
            "modules",
            "a build_model without `params`",
            "build_model of module 'some_model' has no argument 'params', it takes (); add it: it receives your values",
            values={"build_model": _takes()},
        ),
        case(
            "modules",
            "`callbacks = []` beside a build_model",
            "callbacks of module 'some_model' is []; make it a function",
            values={"build_model": _takes("params"), "callbacks": []},
        ),
        case(
            "modules",
            "an empty module",
            "module 'some_model' has no model_fn; define model_fn(features, labels, mode, params) in it",
            "its functions are: none",
            values={},
        ),
        case(
            "modules",
            "`model_fn = 3`",
            "model_fn of module 'some_model' is 3; make it a function",
            values={"model_fn": 3},
        ),
        case(
            "modules",
            "a model_fn with an unknown argument",
            "model_fn of module 'some_model' has an argument 'depth', which gets no value",
            "allowed are features, labels, mode, params, config",
            values={"model_fn": _takes("features", "labels", "params", "depth")},
        ),
        case(
            "modules",
            "a model_fn without `features`",
            "model_fn of module 'some_model' has no argument 'features', it takes (labels, params)",
            "add it: it receives the input's features",
            values={"model_fn": _takes("labels", "params")},
        ),
        case(
            "modules",
            "a model_fn without `params`",
            "model_fn of module 'some_model' has no argument 'params', it takes (features, labels)",
            "add it: params['batch_size'] is the batch size",
            values={"model_fn": _takes("features", "labels")},
        ),
        case(
            "modules",
            "an input_fn with an unknown argument",
            "input_fn of module 'some_model' has an argument 'files', which gets no value",
            "allowed are params, mode, config, fn_args",
            values={"model_fn": _model_fn, "input_fn": _takes("files", "params")},
        ),
        case(
            "modules",
            "an input_fn without `params`",
            "input_fn of module 'some_model' has no argument 'params', it takes ()",
            values={"model_fn": _model_fn, "input_fn": _takes()},
        ),
        case(
            "modules",
            "`input_fn = 'rows'`",
            "input_fn of module 'some_model' is 'rows'; make it a function",
            values={"model_fn": _model_fn, "input_fn": "rows"},
        ),
        case(
            "modules",
            "a serving_input_receiver_fn with an unknown argument",
            "serving_input_receiver_fn of module 'some_model' has an argument 'a', which gets no value",
            "allowed are fn_args",
            values={"model_fn": _model_fn, "serving_input_receiver_fn": _takes("a")},
        ),
        case(
            "modules",
            "`params = 3`",
            "params of module 'some_model' is 3; make it a dict or a function of fn_args",
            values={"model_fn": _model_fn, "params": 3},
        ),
    ],
)
def test_what_nobody_can_use_is_refused(names, refused):
    with refused(ValueError):
        check_module(_module(**names))


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


@pytest.mark.parametrize(
    "params",
    [
        case(
            "modules",
            "a function `params` that returns a list",
            "params of module 'some_model' returned [1]; let it return a dict, such as",
            values=lambda fn_args: [1],
        ),
        case(
            "modules",
            "a function `params` that returns nothing",
            "params of module 'some_model' returned None; let it return a dict, such as",
            values=lambda fn_args: None,
        ),
        case(
            "modules",
            "a function `params` without an argument",
            "params of module 'some_model' takes (); let it take one argument, fn_args",
            values=dict,
        ),
        case(
            "modules",
            "a function `params` of two arguments",
            "params of module 'some_model' takes (fn_args, schema); let it take one argument, fn_args",
            values=lambda fn_args, schema: {},
        ),
        case(
            "modules",
            "`params = {'batch_size': 8}`",
            "params of module 'some_model' has the key 'batch_size'; give strings as keys, except",
            values={"batch_size": 8},
        ),
        case(
            "modules",
            "`params = {1: 2}`",
            "params of module 'some_model' has the key 1; give strings as keys",
            values={1: 2},
        ),
    ],
)
def test_params_must_be_a_dict(params, refused):
    module = check_module(_module(model_fn=_model_fn, params=params))
    with refused(ValueError):
        module.params_for(None)


@row(
    "modules",
    "an input_fn that returns nothing",
    "input_fn of module 'some_model' returned None in mode 'eval'; let it return a tf.data.Dataset",
)
def test_an_input_fn_returns_something(refused):
    module = check_module(_module(model_fn=_model_fn, input_fn=lambda params: None))
    with refused(ValueError):
        module.input_fn_for("eval", None)(params={})


def test_a_folder_takes_its_modules_with_it_and_no_module_of_python(tmp_path):
    for name in ("random", "__main__", "helper_of_this_test"):
        (tmp_path / f"{name}.py").write_text("")
    before = {name: sys.modules[name] for name in ("random", "__main__")}
    with imported_from(str(tmp_path)):
        assert importlib.import_module("helper_of_this_test").__file__.startswith(str(tmp_path))
    assert "helper_of_this_test" not in sys.modules
    assert {name: sys.modules[name] for name in before} == before

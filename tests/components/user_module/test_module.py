"""A module that raises SystemExit never looks like a success."""

from __future__ import annotations

import inspect
import sys

import pytest

from tests.bad_input import case
from tfx_tpu_trainer.components.user_module._module import ModuleExitedError, exits_are_errors


@pytest.mark.parametrize(
    "code",
    [
        case(
            "modules",
            f"a module that calls `sys.exit({code!r})`",
            f"the module 'model' ended the process by SystemExit({code!r}) at",
            "raise an exception that says what is wrong, or return",
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

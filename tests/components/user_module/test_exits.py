"""A module that ends the process never looks like a success."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap

import pytest

from tests.bad_input import case
from tfx_tpu_trainer.components.user_module._exits import ModuleExitedError, exits_are_errors


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


def test_afterwards_exits_are_what_they_were():
    before = os._exit
    with exits_are_errors("model"):
        assert os._exit is not before
    assert os._exit is before
    with pytest.raises(SystemExit):
        sys.exit(0)


@pytest.mark.parametrize(("status", "code", "lines"), [(0, 1, 1), (7, 7, 0)])
def test_os_exit_ends_the_process_and_never_with_0(status, code, lines):
    ended = _python(
        f"""
        import os
        from tfx_tpu_trainer.components.user_module import exits_are_errors

        with exits_are_errors("model"):
            os._exit({status})
        """
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (code, lines), ended.stderr
    assert lines == 0 or "'model' ended the process by os._exit(0) at <string>:6;" in ended.stderr


def test_this_package_ends_helpers_with_0():
    ended = _python(
        """
        import os
        from tfx_tpu_trainer.components.user_module import _exits

        with _exits.exits_are_errors("model"):
            exec(compile("os._exit(0)", _exits.__file__, "exec"))
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_forked_process_may_end_with_0():
    ended = _python(
        """
        import os
        from tfx_tpu_trainer.components.user_module import exits_are_errors

        with exits_are_errors("model"):
            if os.fork() == 0:
                os._exit(0)
            print(os.wait()[1])
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")


def _python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )

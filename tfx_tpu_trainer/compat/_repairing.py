"""Prepares runs of a program's file or module, repaired on request."""

import functools
import sys
from collections.abc import Callable, Sequence

from tfx_tpu_trainer.compat import _program
from tfx_tpu_trainer.compat._repairs import (
    OwnFiles,
    RepairingFileLoader,
    RepairingFinder,
    Repairs,
    files_of_module,
    files_of_program,
    serve_workers,
)


def program_to_run(
    words: Sequence[str],
    *,
    module: str | None = None,
    repair: bool = False,
    packages: Sequence[str] = (),
    shown: bool = False,
) -> Callable[[], int]:
    """Prepares a run of a program in this process, as `python -m tfx_tpu_trainer.compat` runs it.

    It does not install the old names; `install()` does.

    Args:
        words: The program's path and its arguments; the arguments alone with `module`.
        module: A module to run instead of a path. Defaults to `None`.
        repair: Whether its own modules are repaired as they are imported. Defaults to `False`.
        packages: Installed packages to repair as well. Defaults to none.
        shown: Whether the repairs are printed to stderr. Defaults to `False`.

    Returns:
        A function that runs it, and returns its exit code.
    """
    repairs, make_loader = None, None
    if repair:
        own = files_of_program(words[0]) if module is None else files_of_module(module)
        roots = [root for package in packages for root in files_of_module(package).roots]
        repairs = Repairs(OwnFiles([*own.roots, *roots]), shown=shown)
        sys.meta_path.insert(0, RepairingFinder(repairs))
        make_loader = functools.partial(RepairingFileLoader, repairs=repairs)
    serve_workers(repairs)
    if module is None:
        return functools.partial(_program.run_file, words[0], words[1:], make_loader=make_loader)
    return functools.partial(_program.run_module, module, words)

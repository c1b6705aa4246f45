"""Where the TPU's compiler is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform

INSTALL = "pip install 'tfx-tpu-trainer[preflight]'"

_FILE = "libtpu.so"


class PreflightUnavailableError(RuntimeError):
    """No TPU compiler is available on this machine."""


def find_libtpu(path: str | None = None) -> str:
    """Finds the compiler's library."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise PreflightUnavailableError(
            f"The TPU compiler runs on x86-64 Linux only; this is {platform.system()} on "
            f"{platform.machine()}. Run the preflight in a Linux container."
        )
    if path is not None:
        library = os.path.join(path, _FILE) if os.path.isdir(path) else path
        if not os.path.isfile(library):
            raise PreflightUnavailableError(
                f"libtpu_path={path!r}: {_FILE} does not exist there. Give the file, or leave "
                f"libtpu_path out and install the package: {INSTALL}."
            )
        return os.path.abspath(library)
    spec = importlib.util.find_spec("libtpu")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if os.path.isfile(os.path.join(folder, _FILE)):
            return os.path.join(folder, _FILE)
    raise PreflightUnavailableError(
        f"libtpu, which holds the TPU compiler, is not installed: {INSTALL}, or give the path of a "
        f"{_FILE} as libtpu_path."
    )


def libtpu_version(path: str | None = None) -> str:
    """Names the compiler, for reports.

    Args:
        path: See `find_libtpu`.

    Returns:
        Such as `"libtpu 0.0.21"`; the path where one is given.

    Raises:
        PreflightUnavailableError: If it is not there.
    """
    library = find_libtpu(path)
    return library if path is not None else f"libtpu {importlib.metadata.version('libtpu')}"

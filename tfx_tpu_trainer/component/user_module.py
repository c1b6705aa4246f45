"""The user's module of a component: found where TFX has put it."""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Callable, Iterator

from tfx_tpu_trainer import compat
from tfx_tpu_trainer.component.legacy.module import mentions_trainer_fn
from tfx_tpu_trainer.component.module_source import ModuleSource, source_file
from tfx_tpu_trainer.component.tfx_private import udf_utils
from tfx_tpu_trainer.inputs.import_folder import imported_from
from tfx_tpu_trainer.inputs.user_module import (
    UserModule,
    check_module,
    import_file,
    import_module,
)


@contextlib.contextmanager
def opened(source: ModuleSource) -> Iterator[UserModule]:
    """Loads a module with a model_fn and keeps its helpers importable while it is in use.

    Args:
        source: Where the module is.

    Yields:
        The module, checked.

    Raises:
        ValueError: The module can't be loaded, has no model_fn, or a function with wrong arguments.
    """
    with imported(source) as module:
        yield check_module(module)


@contextlib.contextmanager
def imported(
    source: ModuleSource, *, restore_tf_estimator: bool = False
) -> Iterator[types.ModuleType]:
    """Loads the user's module, whatever is in it, and keeps its helpers importable while it is in use.

    Args:
        source: Where the module is.
        restore_tf_estimator: Whether a module that speaks of a trainer_fn finds `tf.estimator` and
            `tfma.export` while it is in use. Defaults to `False`.

    Yields:
        The module.

    Raises:
        ValueError: The module can't be loaded.
    """
    with contextlib.ExitStack() as stack:
        path, load = _found(source, stack)
        if restore_tf_estimator and (source.trainer_fn or (path and mentions_trainer_fn(path))):
            stack.enter_context(compat.install())
        yield load()


def _found(
    source: ModuleSource, stack: contextlib.ExitStack
) -> tuple[str | None, Callable[[], types.ModuleType]]:
    """Gives the module's file and what loads it; the stack holds what must last as long."""
    if source.wheel:
        name, wheels = udf_utils.decode_user_module_key(source.wheel)
        # Left open, so that an import inside model_fn still finds the wheel's other modules. TFX puts their folder last
        # on the path, where any other module of the name would win.
        folder = stack.enter_context(udf_utils.TempPipInstallContext(wheels)).temp_directory
        stack.enter_context(imported_from(folder))
        return os.path.join(folder, f"{name}.py"), functools.partial(import_module, name)
    if source.file:
        stack.enter_context(imported_from(os.path.dirname(os.path.abspath(source.file))))
        return source.file, functools.partial(import_file, source.file)
    name = str(source)
    return source_file(name), functools.partial(import_module, name)

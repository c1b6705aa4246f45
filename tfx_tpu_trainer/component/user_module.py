"""The user's module of a component: found where TFX has put it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tfx_tpu_trainer.component.module_source import ModuleSource
from tfx_tpu_trainer.component.tfx_private import udf_utils
from tfx_tpu_trainer.inputs.import_folder import imported_from
from tfx_tpu_trainer.inputs.user_module import UserModule, load_file, load_module


@contextlib.contextmanager
def opened(source: ModuleSource) -> Iterator[UserModule]:
    """Loads the user's module and keeps its helpers importable while it is in use.

    Args:
        source: Where the module is.

    Yields:
        The module, checked.

    Raises:
        ValueError: The module can't be loaded, has no model_fn, or a function with wrong arguments.
    """
    if source.wheel:
        name, wheels = udf_utils.decode_user_module_key(source.wheel)
        # Left open, so that an import inside model_fn still finds the wheel's other modules. TFX puts their folder last
        # on the path, where any other module of the name would win.
        with (
            udf_utils.TempPipInstallContext(wheels) as context,
            imported_from(context.temp_directory),
        ):
            yield load_module(name)
    elif source.file:
        with imported_from(os.path.dirname(os.path.abspath(source.file))):
            yield load_file(source.file)
    else:
        yield load_module(str(source))

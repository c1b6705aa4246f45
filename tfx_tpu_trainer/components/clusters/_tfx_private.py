"""Names of TFX without an alias in `tfx.v1`, each with its reason."""

from __future__ import annotations

# Schema titles of artifacts in a compiled pipeline -> the class as which a container reads them. TFX reads any other
# title as the import path of a class, which `system.HTML` is not. If this goes away, let the compiled pipeline have
# RunPage's own name, which is such a path; backends then show a link instead of the page.
from tfx.orchestration.kubeflow.v2.compiler_utils import TITLE_TO_CLASS_PATH

# The module that TFX's compiled commands run with `python -m` since 0.30.
RUN_EXECUTOR = "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"

__all__ = ["RUN_EXECUTOR", "TITLE_TO_CLASS_PATH"]

"""Names of TFX without an alias in `tfx.v1`, each with the reason why it is needed."""

from __future__ import annotations

# Titles of artifacts' schemas in a compiled pipeline -> the class that a container reads them as. A title that is not
# among them is taken for the path of a class, which `system.HTML` is not. If it goes away, let the compiled pipeline
# have RunPage's own name, which is such a path: then backends show a link instead of the page.
from tfx.orchestration.kubeflow.v2.compiler_utils import TITLE_TO_CLASS_PATH

# What TFX has compiled into containers' commands since 0.30: `python -m` of this.
RUN_EXECUTOR = "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"

__all__ = ["RUN_EXECUTOR", "TITLE_TO_CLASS_PATH"]

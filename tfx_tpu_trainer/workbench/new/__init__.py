"""A project of the user's own, written from their data: `tfx-tpu-trainer new` (docs/new-project.md)."""

from tfx_tpu_trainer.workbench.new.arguments import ScaffoldError
from tfx_tpu_trainer.workbench.new.creating import create_project

__all__ = ["ScaffoldError", "create_project"]

"""A project of the user's own, written from their data: `tfx-tpu-trainer new` (docs/new-project.md)."""

from tfx_tpu_trainer.scaffold.creating import create_project
from tfx_tpu_trainer.scaffold.errors import ScaffoldError

__all__ = ["ScaffoldError", "create_project"]

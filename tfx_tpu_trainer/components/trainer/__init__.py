"""Trains from Transform's output to a SavedModel: `TpuTrainer`, its settings and its executor.

`trainer.py` declares the component and `settings.py` its settings; TFX calls `trainer_executor.py`; `training.py` has
the steps of a training. `legacy/` runs modules with a `trainer_fn`.
"""

from tfx_tpu_trainer._support.imports import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.components"):
    # Modules here that run without TFX need this package.
    import pydantic as _pydantic  # noqa: F401

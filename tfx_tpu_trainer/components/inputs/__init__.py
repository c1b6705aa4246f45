"""Turns Transform's output into an estimator's input functions and serving receivers.

Nothing here depends on components or artifacts: the inputs are Transform's folder, file patterns and a function that
opens the files as a `tf.data.Dataset`.
"""

from tfx_tpu_trainer._support.imports import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.components.inputs"):
    from tfx_tpu_trainer.components.inputs._input_fns import (
        RAW_PREFIX,
        RawEvaluationInput,
        TransformedInput,
        vocabulary_sizes,
    )
    from tfx_tpu_trainer.components.inputs._row_cache import RowCache, train_on_current_rows
    from tfx_tpu_trainer.components.inputs._serving import MISSING_INTEGER, TransformServing

__all__ = [
    "MISSING_INTEGER",
    "RAW_PREFIX",
    "RawEvaluationInput",
    "RowCache",
    "TransformServing",
    "TransformedInput",
    "train_on_current_rows",
    "vocabulary_sizes",
]

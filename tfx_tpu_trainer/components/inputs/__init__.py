"""From Transform's output to what an estimator eats: input functions and serving receivers.

Nothing here knows of components or artifacts: a folder of Transform, file patterns and a way to
open them as a `tf.data.Dataset` are enough.
"""

from tfx_tpu_trainer._support.imports import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.components.inputs"):
    from tfx_tpu_trainer.components.inputs._raw_evaluation import RAW_PREFIX, RawEvaluationInput
    from tfx_tpu_trainer.components.inputs._raw_features import MISSING_INTEGER
    from tfx_tpu_trainer.components.inputs._serving import TransformServing
    from tfx_tpu_trainer.components.inputs._transformed import TransformedInput, vocabulary_sizes
    from tfx_tpu_trainer.components.inputs.row_cache.cache import RowCache
    from tfx_tpu_trainer.components.inputs.row_cache.changed_files import train_on_current_rows

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

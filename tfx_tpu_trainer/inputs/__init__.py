"""From Transform's output to what an estimator eats: input functions and serving receivers.

Nothing here knows of components or artifacts: a folder of Transform, file patterns and a way to
open them as a `tf.data.Dataset` are enough.
"""

from tfx_tpu_trainer.inputs.serving import TransformServing
from tfx_tpu_trainer.inputs.transformed import TransformedInput
from tfx_tpu_trainer.inputs.vocabularies import vocabulary_sizes

__all__ = ["TransformServing", "TransformedInput", "vocabulary_sizes"]

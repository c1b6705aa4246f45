"""The Head classes of `tf.estimator`: loss, metrics, predictions and signatures from logits."""

from tfx_tpu_trainer.estimator.heads._classification import (
    BinaryClassHead,
    MultiClassHead,
    MultiLabelHead,
)
from tfx_tpu_trainer.estimator.heads._head import Head
from tfx_tpu_trainer.estimator.heads._multi_head import MultiHead
from tfx_tpu_trainer.estimator.heads._regression import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)

__all__ = [
    "BinaryClassHead",
    "Head",
    "LogisticRegressionHead",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PoissonRegressionHead",
    "RegressionHead",
]

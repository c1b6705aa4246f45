"""The Head classes of `tf.estimator`: loss, metrics, predictions and signatures from logits."""

from tfx_tpu_trainer.estimator.heads.binary_class import BinaryClassHead
from tfx_tpu_trainer.estimator.heads.head import Head
from tfx_tpu_trainer.estimator.heads.multi_class import MultiClassHead
from tfx_tpu_trainer.estimator.heads.multi_head import MultiHead
from tfx_tpu_trainer.estimator.heads.multi_label import MultiLabelHead
from tfx_tpu_trainer.estimator.heads.regression import (
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

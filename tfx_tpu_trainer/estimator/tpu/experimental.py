"""The API of `tf.compat.v1.estimator.tpu.experimental`, and the classes that its spec takes.

The parameter classes were in `tf.compat.v1.tpu.experimental`, and the configurations next to them, until TensorFlow
2.16 removed them with the original.
"""

from tfx_tpu_trainer.estimator.tpu.embedding.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    ProximalAdagradParameters,
    RMSPropParameters,
    StochasticGradientDescentParameters,
)
from tfx_tpu_trainer.estimator.tpu.embedding.spec import (
    EmbeddingConfigSpec,
    FeatureConfig,
    TableConfig,
)

__all__ = [
    "AdagradParameters",
    "AdamParameters",
    "EmbeddingConfigSpec",
    "FeatureConfig",
    "FtrlParameters",
    "MomentumParameters",
    "ProximalAdagradParameters",
    "RMSPropParameters",
    "StochasticGradientDescentParameters",
    "TableConfig",
]

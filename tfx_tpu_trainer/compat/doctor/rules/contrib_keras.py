"""tf.contrib.keras: Keras as TensorFlow 1.2 had it, now tf.keras."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, moved

_THEME: Final = "contrib"
_KERAS: Final = "tensorflow.contrib.keras"
_SAYS: Final = "TensorFlow 2 has no tf.contrib; this was Keras, now tf.keras."

# Private paths (`python.keras.layers.core.Dense`) have only their class's name by now.
_CLASSES: Final = {
    "callbacks": "Callback CSVLogger EarlyStopping History LambdaCallback ModelCheckpoint ReduceLROnPlateau "
    "TensorBoard TerminateOnNaN",
    "constraints": "MaxNorm MinMaxNorm NonNeg UnitNorm",
    "initializers": "Constant Identity Ones Orthogonal RandomNormal RandomUniform TruncatedNormal "
    "VarianceScaling Zeros glorot_normal glorot_uniform he_normal he_uniform lecun_normal lecun_uniform",
    "layers": "Activation ActivityRegularization Add AlphaDropout Average AveragePooling1D AveragePooling2D "
    "AveragePooling3D BatchNormalization Bidirectional Concatenate Conv1D Conv2D Conv2DTranspose Conv3D "
    "Conv3DTranspose ConvLSTM2D Cropping1D Cropping2D Cropping3D Dense Dot Dropout ELU Embedding Flatten GRU "
    "GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D "
    "GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D InputLayer LSTM Lambda Layer LeakyReLU "
    "LocallyConnected1D LocallyConnected2D "
    "Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum Multiply PReLU Permute RepeatVector Reshape "
    "SeparableConv2D SimpleRNN SpatialDropout1D SpatialDropout2D SpatialDropout3D Subtract ThresholdedReLU "
    "TimeDistributed UpSampling1D UpSampling2D UpSampling3D Wrapper ZeroPadding1D ZeroPadding2D "
    "ZeroPadding3D",
    "models": "Model Sequential",
    "regularizers": "L1L2",
}

RULES: Final[dict[str, Advice]] = {
    _KERAS: Advice(_THEME, Verdict.EDIT, _SAYS, becomes="tensorflow.keras"),
    **moved(
        _THEME,
        _SAYS,
        f"{_KERAS}.backend",
        "tensorflow.compat.v1.keras.backend",
        "get_session set_session",
    ),
    **{
        name: advice
        for module, names in _CLASSES.items()
        for name, advice in moved(
            _THEME, _SAYS, _KERAS, f"tensorflow.keras.{module}", names
        ).items()
    },
}

MODULES: Final[dict[str, str]] = {}

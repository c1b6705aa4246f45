"""tf.contrib's layers, cells, metrics and Keras: what models are made of."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand, moved

_THEME: Final = "contrib"
_LAYERS: Final = "tensorflow.contrib.layers"
_FRAMEWORK: Final = "tensorflow.contrib.framework"
_METRICS: Final = "tensorflow.contrib.metrics"
_RNN: Final = "tensorflow.contrib.rnn"
_V1: Final = "tensorflow.compat.v1"
_CORE: Final = "TensorFlow 2 has no tf.contrib; tf.compat.v1 has this name."
_COLUMN: Final = (
    "tf.contrib's feature columns became those of tf.feature_column, with other arguments."
)
_SLIM: Final = "TensorFlow 2 has no tf.contrib; slim lives on as the package tf_slim."

RULES: Final[dict[str, Advice]] = {
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.feature_column has this name with the same arguments.",
        _LAYERS,
        "tensorflow.feature_column",
        "crossed_column embedding_column",
    ),
    **by_hand(
        _THEME,
        _LAYERS,
        {
            "": (
                "TensorFlow 2 has no tf.contrib.",
                (
                    "look for the layer in tf.compat.v1.layers, or use the tf_slim package: `import "
                    "tf_slim`"
                ),
            ),
            "real_valued_column": (
                _COLUMN,
                "tf.feature_column.numeric_column(key, shape=dimension)",
            ),
            "sparse_column_with_hash_bucket": (
                _COLUMN,
                "tf.feature_column.categorical_column_with_hash_bucket(key, hash_bucket_size)",
            ),
            "sparse_column_with_keys": (
                _COLUMN,
                "tf.feature_column.categorical_column_with_vocabulary_list(key, keys)",
            ),
            "sparse_column_with_integerized_feature": (
                _COLUMN,
                "tf.feature_column.categorical_column_with_identity(key, bucket_size)",
            ),
            "one_hot_column": (_COLUMN, "tf.feature_column.indicator_column(column)"),
            "bucketized_column": (
                _COLUMN,
                "tf.feature_column.bucketized_column(numeric, boundaries)",
            ),
            "create_feature_spec_for_parsing": (
                _COLUMN,
                "tf.feature_column.make_parse_example_spec(columns)",
            ),
        },
    ),
    **moved(
        _THEME,
        _CORE,
        _FRAMEWORK,
        f"{_V1}.train",
        "assert_global_step create_global_step get_global_step get_or_create_global_step init_from_checkpoint "
        "list_variables load_checkpoint load_variable",
    ),
    **moved(_THEME, _CORE, _FRAMEWORK, "tensorflow", "argsort sort is_tensor TensorSpec"),
    **by_hand(
        _THEME,
        _FRAMEWORK,
        {
            "": (
                "TensorFlow 2 has no tf.contrib.",
                "look for the name in tf.compat.v1 or tf.compat.v1.train, or in the tf_slim package",
            ),
        },
    ),
    **by_hand(
        _THEME,
        _METRICS,
        {
            "": ("TensorFlow 2 has no tf.contrib.", "look for the metric in tf.compat.v1.metrics"),
        },
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.compat.v1.nn.rnn_cell has this cell.",
        _RNN,
        f"{_V1}.nn.rnn_cell",
        "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell LSTMCell LSTMStateTuple MultiRNNCell "
        "RNNCell ResidualWrapper",
    ),
    **moved(
        _THEME,
        _CORE,
        _RNN,
        f"{_V1}.nn",
        "static_bidirectional_rnn static_rnn",
    ),
    **by_hand(
        _THEME,
        _RNN,
        {
            "": (
                "TensorFlow 2 has no tf.contrib.",
                "look for the cell in tf.compat.v1.nn.rnn_cell or tf.keras.layers",
            )
        },
    ),
    **moved(
        _THEME,
        _CORE,
        "tensorflow.contrib.slim",
        f"{_V1}.train",
        "assert_global_step create_global_step get_global_step get_or_create_global_step",
    ),
    **by_hand(
        _THEME,
        "tensorflow.contrib",
        {
            "slim": (
                (
                    "TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.compat.contrib.slim has slim's layers and loops, "
                    "not its networks and queues."
                ),
                "train with an Estimator; slim's networks are in the package tf_slim, whose own layers they use",
            ),
        },
    ),
}

MODULES: Final[dict[str, str]] = {
    f"{_RNN}": f"{_V1}.nn.rnn_cell",
}


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

KERAS_RULES: Final[dict[str, Advice]] = {
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

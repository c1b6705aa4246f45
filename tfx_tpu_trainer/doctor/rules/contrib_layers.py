"""tf.contrib's layers, cells, metrics and the rest of what models are made of."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.doctor.findings import Verdict
from tfx_tpu_trainer.doctor.rules.advice import Advice, by_hand, moved

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
_SLIM: Final = "TensorFlow 2 has no tf.contrib; slim lives on as a package of its own, tf_slim."

RULES: Final[dict[str, Advice]] = {
    **moved(_THEME, _CORE, _LAYERS, f"{_V1}.layers", "flatten max_pool2d:max_pooling2d"),
    **moved(_THEME, _CORE, _LAYERS, f"{_V1}.nn", "bias_add"),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.feature_column has this name with the same arguments.",
        _LAYERS,
        "tensorflow.feature_column",
        "crossed_column embedding_column",
    ),
    # A rewriter looks at the arguments of these.
    **{
        f"{_LAYERS}.{name}": Advice(
            _THEME,
            Verdict.EDIT,
            "TensorFlow 2 has no tf.contrib.",
            edit=edit,
            becomes=becomes,
            calls_only=True,
        )
        for name, becomes, edit in (
            (
                "xavier_initializer",
                f"{_V1}.glorot_uniform_initializer",
                "tf.compat.v1.glorot_uniform_initializer(seed=...); uniform=False was glorot_normal_initializer",
            ),
            (
                "xavier_initializer_conv2d",
                f"{_V1}.glorot_uniform_initializer",
                "tf.compat.v1.glorot_uniform_initializer(seed=...); uniform=False was glorot_normal_initializer",
            ),
            (
                "l2_regularizer",
                "tensorflow.keras.regularizers.l2",
                "tf.keras.regularizers.l2(0.5 * scale): contrib's had the half in it",
            ),
            (
                "l1_regularizer",
                "tensorflow.keras.regularizers.l1",
                "tf.keras.regularizers.l1(scale)",
            ),
        )
    },
    **by_hand(
        _THEME,
        _LAYERS,
        {
            "": (
                "TensorFlow 2 has no tf.contrib.",
                "look for the layer in tf.compat.v1.layers, or take the tf_slim package: `import tf_slim`",
            ),
            "batch_norm": (
                "TensorFlow 2 has no tf.contrib; the defaults differ.",
                (
                    "tf.compat.v1.layers.batch_normalization(x, momentum=0.999, center=True, scale=False, "
                    "training=mode == tf.estimator.ModeKeys.TRAIN)"
                ),
            ),
            "conv2d": (
                "TensorFlow 2 has no tf.contrib; contrib's layer had a ReLU and SAME padding by default.",
                'tf.compat.v1.layers.conv2d(x, filters, kernel_size, padding="same", activation=tf.nn.relu)',
            ),
            "dropout": (
                "TensorFlow 2 has no tf.contrib; keep_prob became rate, 1 - keep_prob.",
                "tf.compat.v1.layers.dropout(x, rate=1 - keep_prob, training=...)",
            ),
            "fully_connected": (
                "TensorFlow 2 has no tf.contrib; contrib's layer had a ReLU by default.",
                "tf.compat.v1.layers.dense(x, units, activation=tf.nn.relu)",
            ),
            "layer_norm": (
                "TensorFlow 2 has no tf.contrib.",
                (
                    "tf.keras.layers.LayerNormalization(axis=-1, epsilon=1e-12)(x); the variables keep the names "
                    "gamma and beta"
                ),
            ),
            "linear": (
                "TensorFlow 2 has no tf.contrib.",
                "tf.compat.v1.layers.dense(x, units)",
            ),
            "embed_sequence": (
                "TensorFlow 2 has no tf.contrib.",
                'tf.nn.embedding_lookup(tf.compat.v1.get_variable("embeddings", [vocab_size, embed_dim]), ids)',
            ),
            "optimize_loss": (
                "TensorFlow 2 has no tf.contrib.",
                (
                    "tf.compat.v1.train.AdamOptimizer(learning_rate).minimize(loss, "
                    "tf.compat.v1.train.get_global_step())"
                ),
            ),
            "variance_scaling_initializer": (
                "TensorFlow 2 has no tf.contrib; the defaults differ.",
                (
                    'tf.compat.v1.variance_scaling_initializer(scale=2.0, mode="fan_in", '
                    'distribution="truncated_normal")'
                ),
            ),
            "apply_regularization": (
                "TensorFlow 2 has no tf.contrib.",
                "tf.add_n([regularizer(weights) for weights in tf.compat.v1.trainable_variables()])",
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
    **moved(_THEME, _CORE, _FRAMEWORK, "tensorflow", "argsort sort nest"),
    **by_hand(
        _THEME,
        _FRAMEWORK,
        {
            "": (
                "TensorFlow 2 has no tf.contrib.",
                "look for the name in tf.compat.v1 or tf.compat.v1.train, or in the tf_slim package",
            ),
            "arg_scope": (_SLIM, "from tf_slim import arg_scope"),
            "add_arg_scope": (_SLIM, "from tf_slim import add_arg_scope"),
        },
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.compat.v1.metrics has it without streaming_ in its name.",
        _METRICS,
        f"{_V1}.metrics",
        "streaming_accuracy:accuracy streaming_auc:auc streaming_mean:mean "
        "streaming_mean_absolute_error:mean_absolute_error streaming_mean_iou:mean_iou "
        "streaming_mean_squared_error:mean_squared_error streaming_recall:recall "
        "streaming_precision:precision streaming_root_mean_squared_error:root_mean_squared_error",
    ),
    **by_hand(
        _THEME,
        _METRICS,
        {
            "": ("TensorFlow 2 has no tf.contrib.", "look for the metric in tf.compat.v1.metrics"),
            "f1_score": (
                "TensorFlow 2 has no tf.contrib.",
                "2 * p * r / (p + r) of tf.compat.v1.metrics.precision and recall, with both update ops",
            ),
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
    **by_hand(
        _THEME,
        "tensorflow.contrib",
        {
            "slim": (_SLIM, "pip install tf_slim, then `import tf_slim as slim`"),
        },
    ),
}

MODULES: Final[dict[str, str]] = {
    f"{_RNN}": f"{_V1}.nn.rnn_cell",
}

"""Rules for tf.contrib, except its estimators and TPU part: layers, cells, Keras, datasets, summaries and others."""

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import (
    CONTRIB_THEME,
    Advice,
    Verdict,
    by_hand,
    joined,
    moved,
)

_CONTRIB: Final = "tensorflow.contrib"
_LAYERS: Final = "tensorflow.contrib.layers"
_FRAMEWORK: Final = "tensorflow.contrib.framework"
_METRICS: Final = "tensorflow.contrib.metrics"
_RNN: Final = "tensorflow.contrib.rnn"
_V1: Final = "tensorflow.compat.v1"
_CORE: Final = "TensorFlow 2 has no tf.contrib; tf.compat.v1 has this name."
_COLUMN: Final = (
    "tf.contrib's feature columns became those of tf.feature_column, with other arguments."
)

LAYER_RULES: Final[dict[str, Advice]] = joined(
    moved(
        _LAYERS,
        "tensorflow.feature_column",
        "crossed_column embedding_column",
        says="TensorFlow 2 has no tf.contrib; tf.feature_column has this name with the same arguments.",
    ),
    by_hand(
        _LAYERS,
        {
            "": (
                "look for the layer in tf.compat.v1.layers, or use the tf_slim package: `import "
                "tf_slim`"
            ),
        },
    ),
    by_hand(
        _LAYERS,
        {
            "real_valued_column": "tf.feature_column.numeric_column(key, shape=dimension)",
            "sparse_column_with_hash_bucket": (
                "tf.feature_column.categorical_column_with_hash_bucket(key, hash_bucket_size)"
            ),
            "sparse_column_with_keys": "tf.feature_column.categorical_column_with_vocabulary_list(key, keys)",
            "sparse_column_with_integerized_feature": (
                "tf.feature_column.categorical_column_with_identity(key, bucket_size)"
            ),
            "one_hot_column": "tf.feature_column.indicator_column(column)",
            "bucketized_column": "tf.feature_column.bucketized_column(numeric, boundaries)",
            "create_feature_spec_for_parsing": "tf.feature_column.make_parse_example_spec(columns)",
        },
        says=_COLUMN,
    ),
    moved(
        _FRAMEWORK,
        f"{_V1}.train",
        (
            "assert_global_step create_global_step get_global_step get_or_create_global_step init_from_checkpoint "
            "list_variables load_checkpoint load_variable"
        ),
        says=_CORE,
    ),
    moved(_FRAMEWORK, "tensorflow", "argsort sort is_tensor TensorSpec", says=_CORE),
    by_hand(
        _FRAMEWORK,
        {"": "look for the name in tf.compat.v1 or tf.compat.v1.train, or in the tf_slim package"},
    ),
    by_hand(_METRICS, {"": "look for the metric in tf.compat.v1.metrics"}),
    moved(
        _RNN,
        f"{_V1}.nn.rnn_cell",
        (
            "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell LSTMCell LSTMStateTuple MultiRNNCell "
            "RNNCell ResidualWrapper"
        ),
        says="TensorFlow 2 has no tf.contrib; tf.compat.v1.nn.rnn_cell has this cell.",
    ),
    moved(_RNN, f"{_V1}.nn", "static_bidirectional_rnn static_rnn", says=_CORE),
    by_hand(_RNN, {"": "look for the cell in tf.compat.v1.nn.rnn_cell or tf.keras.layers"}),
    moved(
        "tensorflow.contrib.slim",
        f"{_V1}.train",
        "assert_global_step create_global_step get_global_step get_or_create_global_step",
        says=_CORE,
    ),
    by_hand(
        "tensorflow.contrib",
        {
            "slim": (
                (
                    "TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.compat.contrib.slim has slim's layers and loops, "
                    "not its networks and queues."
                ),
                "train with an Estimator; slim's networks are in the package tf_slim, whose own layers they use",
            )
        },
    ),
)


_KERAS: Final = "tensorflow.contrib.keras"
_WAS_KERAS: Final = "TensorFlow 2 has no tf.contrib; this was Keras, now tf.keras."

# Private paths (`python.keras.layers.core.Dense`) are reduced to their class's name here.
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

KERAS_RULES: Final[dict[str, Advice]] = joined(
    {
        _KERAS: Advice(CONTRIB_THEME, Verdict.EDIT, _WAS_KERAS, becomes="tensorflow.keras"),
    },
    moved(
        f"{_KERAS}.backend",
        "tensorflow.compat.v1.keras.backend",
        "get_session set_session",
        says=_WAS_KERAS,
    ),
    *(
        moved(_KERAS, f"tensorflow.keras.{module}", names, says=_WAS_KERAS)
        for module, names in _CLASSES.items()
    ),
)


_TRAINING: Final = f"{_CONTRIB}.training"

RULES: Final[dict[str, Advice]] = joined(
    moved(
        f"{_CONTRIB}.hooks",
        "tensorflow.compat.v1.train",
        "ProfilerHook",
        says="TensorFlow 2 has no tf.contrib; tf.compat.v1.train has this hook.",
    ),
    moved(
        f"{_CONTRIB}.eager",
        "tensorflow",
        (
            "Variable executing_eagerly in_eager_mode:executing_eagerly py_func:py_function GradientTape "
            "defun:function function"
        ),
        says="TensorFlow 2 has no tf.contrib; TensorFlow 2 has this name.",
    ),
    moved(
        f"{_CONTRIB}.signal",
        "tensorflow.signal",
        (
            "frame hamming_window hann_window inverse_stft inverse_stft_window_fn linear_to_mel_weight_matrix "
            "mfccs_from_log_mel_spectrograms overlap_and_add stft"
        ),
    ),
    moved(
        f"{_CONTRIB}.compiler.jit",
        "tensorflow.xla.experimental",
        "experimental_jit_scope:jit_scope",
    ),
    moved(f"{_CONTRIB}.compiler.xla", "tensorflow.xla.experimental", "compile"),
    moved(
        f"{_CONTRIB}.autograph",
        "tensorflow.autograph",
        "to_graph to_code set_verbosity trace do_not_convert:experimental.do_not_convert",
    ),
    moved(_TRAINING, "tensorflow.train", "checkpoints_iterator"),
    moved(
        f"{_CONTRIB}.lookup",
        "tensorflow.lookup",
        "KeyValueTensorInitializer TextFileIndex TextFileInitializer",
    ),
    moved(
        f"{_CONTRIB}.lookup",
        "tensorflow.lookup.experimental",
        "MutableHashTable MutableDenseHashTable:DenseHashTable",
        says="TensorFlow 2 has no tf.contrib; tf.lookup.experimental has this table.",
    ),
    moved(
        f"{_CONTRIB}.distributions",
        "tensorflow.compat.v1.distributions",
        (
            "Bernoulli Beta Categorical Dirichlet DirichletMultinomial Distribution Exponential "
            "FULLY_REPARAMETERIZED Gamma Laplace Multinomial NOT_REPARAMETERIZED Normal RegisterKL "
            "ReparameterizationType StudentT Uniform kl_divergence"
        ),
    ),
    moved(
        f"{_CONTRIB}.util",
        "tensorflow",
        "constant_value:get_static_value make_ndarray make_tensor_proto",
        says="TensorFlow 2 has no tf.contrib; TensorFlow 2 has this name.",
    ),
    moved(
        f"{_CONTRIB}.tfprof",
        "tensorflow.compat.v1.profiler",
        "ProfileOptionBuilder Profiler",
        says="TensorFlow 2 has no tf.contrib; tf.summary and tf.compat.v1.profiler have its functions.",
    ),
    by_hand(
        _TRAINING,
        {
            "": "look for the name in tf.compat.v1.train",
            "stratified_sample": "tf.data.experimental.rejection_resample",
            "bucket_by_sequence_length": "dataset.bucket_by_sequence_length(...)",
        },
    ),
    by_hand(
        _CONTRIB,
        {
            "": (
                "TensorFlow 2 has no tf.contrib, and the doctor has no rule for this part of it.",
                (
                    "look for it in TensorFlow 2, in tf_slim or in TensorFlow's sister packages; "
                    "otherwise rewrite it"
                ),
            ),
            "crf": "tfx_tpu_trainer.compat.contrib.crf has the likelihood and the decoding",
            "cudnn_rnn": (
                "tf.keras.layers.LSTM and GRU; tfx_tpu_trainer.compat.contrib.cudnn_rnn has the cells that take "
                "cuDNN's variables"
            ),
            "eager": "look for the name in tf",
            "graph_editor": (
                "tfx_tpu_trainer.compat.contrib.graph_editor has the walks, selections and rerouting, no copies"
            ),
            "image": (
                "look for it in tf.image, tf.keras.layers (RandomRotation, ...) or "
                "tfx_tpu_trainer.compat.contrib.image"
            ),
            "distributions": "look for the name in the tensorflow_probability package",
            "lookup": "look for the name in tf.lookup",
            "opt": "an optimizer of tf.compat.v1.train; tfx_tpu_trainer.compat.contrib.opt has those with weight decay",
            "predictor": (
                'tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]; '
                "`tfx-tpu-trainer inspect PATH` lists the signatures"
            ),
            "seq2seq": "look for the name in tfx_tpu_trainer.compat.contrib.seq2seq",
            "session_bundle": "tf.saved_model.load",
            "tfprof": "tf.compat.v1.profiler",
            "quantize": "the tensorflow_model_optimization package",
            "tensorrt": "tf.experimental.tensorrt",
        },
    ),
)


_DATA: Final = "tensorflow.contrib.data"

_NOW: Final = "tensorflow.data.experimental"
_IN_V1: Final = "tensorflow.compat.v1.data.experimental"
_DROPPED: Final = (
    ".batch(n, drop_remainder=True) instead of .apply(tf.contrib.data.batch_and_drop_remainder(n))"
)
_GONE_DATA: Final = {
    "assert_element_shape": "set the shape in a map: tensor.set_shape(...)",
    "read_batch_features": "tf.data.experimental.make_batched_features_dataset(files, batch_size, features)",
    "sliding_window_batch": "dataset.window(size, shift=..., stride=...)",
}

DATA_RULES: Final[dict[str, Advice]] = joined(
    moved(
        _DATA,
        _NOW,
        (
            "AUTOTUNE Counter CsvDataset Optional RandomDataset Reducer SqlDataset TFRecordWriter "
            "bucket_by_sequence_length choose_from_datasets copy_to_device dense_to_sparse_batch enumerate_dataset "
            "get_single_element group_by_reducer group_by_window ignore_errors make_batched_features_dataset "
            "make_csv_dataset make_saveable_from_iterator map_and_batch parallel_interleave prefetch_to_device "
            "rejection_resample sample_from_datasets scan shuffle_and_repeat take_while unbatch unique"
        ),
    ),
    moved(
        _DATA,
        "tensorflow.compat.v1.data",
        "Dataset FixedLengthRecordDataset Iterator TFRecordDataset TextLineDataset",
        says="It was tf.contrib.data's dataset before TensorFlow 1.4; tf.data has it.",
    ),
    {
        f"{_DATA}.batch_and_drop_remainder": Advice(
            CONTRIB_THEME,
            Verdict.EDIT,
            "TensorFlow 2 has no tf.contrib; a dataset's batch() does the same.",
            edit=_DROPPED,
            becomes="batch",
            calls_only=True,
        ),
    },
    {
        f"{module}.batch_and_drop_remainder": Advice(
            CONTRIB_THEME, Verdict.EDIT, "A dataset's batch() does the same.", _DROPPED
        )
        for module in (_NOW, _IN_V1)
    },
    # An import of the old module becomes one of the new, which lacks these.
    *(by_hand(module, _GONE_DATA, says="Gone.") for module in (_DATA, _NOW, _IN_V1)),
    by_hand(
        _DATA,
        {"StatsAggregator": "leave it out; TensorFlow's profiler shows the input pipeline"},
        says="Gone.",
    ),
    by_hand(_DATA, {"": "look for the name in tf.data.experimental"}),
)

MODULES: Final = {_DATA: _NOW, _RNN: f"{_V1}.nn.rnn_cell"}


_SUMMARIES_THEME: Final = "summaries"
_SUMMARY: Final = "tensorflow.contrib.summary"
_SAYS: Final = (
    "TensorFlow 2 has no tf.contrib; its summaries are TensorFlow 2's, in tf.compat.v2.summary."
)


def _call(becomes: str, edit: str) -> Advice:
    return Advice(
        _SUMMARIES_THEME, Verdict.EDIT, _SAYS, edit=edit, becomes=becomes, calls_only=True
    )


SUMMARY_RULES: Final[dict[str, Advice]] = joined(
    # create_file_writer(logdir, max_queue, flush_millis, filename_suffix, name) as before.
    moved(
        _SUMMARY,
        "tensorflow.compat.v2.summary",
        "create_file_writer create_summary_file_writer:create_file_writer flush should_record_summaries",
        says=_SAYS,
        theme=_SUMMARIES_THEME,
    ),
    moved(
        _SUMMARY,
        "tensorflow.compat.v1.summary",
        "initialize all_summary_ops:all_v2_summary_ops",
        says=_SAYS,
        theme=_SUMMARIES_THEME,
    ),
    {
        f"{_SUMMARY}.always_record_summaries": _call(
            "tensorflow.compat.v2.summary.record_if", "tf.compat.v2.summary.record_if(True)"
        ),
        f"{_SUMMARY}.never_record_summaries": _call(
            "tensorflow.compat.v2.summary.record_if", "tf.compat.v2.summary.record_if(False)"
        ),
    },
    {
        f"{_SUMMARY}.{kind}": _call(
            f"tensorflow.compat.v2.summary.{kind}",
            f"tf.compat.v2.summary.{kind}(name, data, step=step)",
        )
        for kind in ("scalar", "histogram", "image", "audio")
    },
    by_hand(
        _SUMMARY,
        {
            "": "look for the name in tf.compat.v2.summary",
            "generic": "tf.compat.v2.summary.write(name, tensor, step=step)",
            "create_tf_process_summary_writer": "tf.compat.v2.summary.create_file_writer(folder)",
        },
        says=_SAYS,
        theme=_SUMMARIES_THEME,
    ),
)

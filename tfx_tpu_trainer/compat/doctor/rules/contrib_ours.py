"""Lists the names of tf.contrib that tfx_tpu_trainer.compat.contrib has, and those it no longer has.

The first are its modules' `__all__`, which a test compares.
"""

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import OURS, Advice, by_hand, joined, moved

_CONTRIB: Final = "tensorflow.contrib"
PACKAGE: Final = "tfx_tpu_trainer.compat.contrib"

NAMES: Final = {
    "crf": "crf_decode crf_log_likelihood crf_log_norm crf_sequence_score viterbi_decode",
    "cudnn_rnn": "CudnnCompatibleGRUCell CudnnCompatibleLSTMCell",
    "data": "batch_and_drop_remainder padded_batch_and_drop_remainder",
    "distributions": "percentile",
    "framework": (
        "add_arg_scope add_model_variable arg_scope assign_from_checkpoint_fn current_arg_scope deprecated "
        "filter_variables get_model_variables get_name_scope get_trainable_variables get_variables "
        "get_variables_to_restore local_variable model_variable nest smart_cond variable with_same_shape"
    ),
    "graph_editor": (
        "add_control_inputs filter_ts filter_ts_from_regex get_backward_walk_ops get_forward_walk_ops "
        "reroute_ts select_ops"
    ),
    "image": (
        "angles_to_projective_transforms compose_transforms rotate transform translate "
        "translations_to_projective_transforms"
    ),
    "layers": (
        "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES apply_regularization avg_pool2d batch_norm conv1d conv2d "
        "conv2d_transpose conv3d convolution convolution1d convolution2d convolution2d_transpose convolution3d "
        "dropout elu flatten fully_connected group_norm instance_norm l1_regularizer l2_regularizer layer_norm "
        "linear max_pool2d optimize_loss relu relu6 repeat separable_conv2d separable_convolution2d softmax "
        "sum_regularizer summarize_collection summarize_tensor variance_scaling_initializer xavier_initializer "
        "xavier_initializer_conv2d"
    ),
    "lookup": (
        "HashTable HasherSpec index_table_from_file index_table_from_tensor index_to_string_table_from_file"
    ),
    "metrics": (
        "aggregate_metric_map confusion_matrix streaming_accuracy streaming_auc streaming_concat "
        "streaming_covariance streaming_false_negatives streaming_false_positives streaming_mean "
        "streaming_mean_absolute_error streaming_mean_cosine_distance streaming_mean_iou "
        "streaming_mean_relative_error streaming_mean_squared_error streaming_mean_tensor "
        "streaming_pearson_correlation streaming_percentage_less streaming_precision "
        "streaming_precision_at_thresholds streaming_recall streaming_recall_at_thresholds "
        "streaming_root_mean_squared_error streaming_sensitivity_at_specificity streaming_sparse_precision_at_k "
        "streaming_sparse_recall_at_k streaming_specificity_at_sensitivity streaming_true_negatives "
        "streaming_true_positives"
    ),
    "opt": (
        "AdamWOptimizer DecoupledWeightDecayExtension MovingAverageOptimizer extend_with_decoupled_weight_decay"
    ),
    "quantize": "graph_matcher",
    "resampler": "resampler",
    "rnn": (
        "InputProjectionWrapper LSTMBlockCell LayerNormBasicLSTMCell OutputProjectionWrapper "
        "stack_bidirectional_dynamic_rnn"
    ),
    "seq2seq": (
        "AttentionMechanism AttentionWrapper AttentionWrapperState BahdanauAttention BasicDecoder "
        "BasicDecoderOutput BeamSearchDecoder BeamSearchDecoderOutput BeamSearchDecoderState CustomHelper "
        "Decoder FinalBeamSearchDecoderOutput GreedyEmbeddingHelper Helper LuongAttention SampleEmbeddingHelper "
        "ScheduledEmbeddingTrainingHelper TrainingHelper dynamic_decode gather_tree hardmax sequence_loss "
        "tile_batch"
    ),
    "slim": (
        "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES add_arg_scope add_model_variable apply_regularization "
        "arg_scope assign_from_checkpoint_fn avg_pool2d batch_norm conv1d conv2d conv2d_transpose conv3d "
        "convolution convolution1d convolution2d convolution2d_transpose convolution3d current_arg_scope "
        "data_decoder deprecated dropout elu evaluation filter_variables flatten fully_connected "
        "get_model_variables get_trainable_variables get_variables get_variables_to_restore group_norm "
        "initializers instance_norm l1_regularizer l2_regularizer layer_norm learning linear local_variable "
        "max_pool2d metrics model_variable optimize_loss queues regularizers relu relu6 repeat separable_conv2d "
        "separable_convolution2d softmax sum_regularizer summaries summarize_collection summarize_tensor "
        "tfexample_decoder utils variable variance_scaling_initializer xavier_initializer "
        "xavier_initializer_conv2d"
    ),
    "staging": "StagingArea",
    "summary": (
        "all_summary_ops always_record_summaries create_file_writer flush graph histogram initialize "
        "record_summaries_every_n_global_steps scalar summary_writer_initializer_op"
    ),
    "tfprof": "model_analyzer",
    "training": (
        "HParams StopAfterNEvalsHook SummaryAtEndHook add_gradients_summaries clip_gradient_norms "
        "create_train_op evaluate_once evaluate_repeatedly get_or_create_eval_step multiply_gradients "
        "parse_values train wait_for_new_checkpoint"
    ),
}
# Calls that TensorFlow 2's functions replace if the arguments allow; the parts' own rules decide.
_REWRITTEN: Final = {
    "data": "batch_and_drop_remainder",
    "summary": (
        "all_summary_ops always_record_summaries create_file_writer flush histogram initialize scalar"
    ),
}

# Names that no measured program uses, which this package no longer has, with their replacements.
_LAYERS: Final = {
    "bias_add": 'tf.nn.bias_add(inputs, tf.compat.v1.get_variable("BiasAdd/biases", [channels]))',
    "embed_sequence": (
        'tf.nn.embedding_lookup(tf.compat.v1.get_variable("EmbedSequence/embeddings", [vocab_size, embed_dim]), ids)'
    ),
    "embedding_lookup_unique": "tf.nn.embedding_lookup(params, ids), which has the same values",
    "l1_l2_regularizer": (
        f"{PACKAGE}.layers.sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)])"
    ),
    "maxout": "tf.reduce_max(tf.reshape(inputs, [-1, num_units, size // num_units]), -1)",
    "one_hot_encoding": "tf.one_hot(labels, num_classes)",
    "stack": "a loop over the arguments, whose layers have the scopes stack/stack_1, stack/stack_2 and so on",
    "summarize_activation": "tf.compat.v1.summary.histogram(name, tensor)",
    "summarize_activations": f"{PACKAGE}.layers.summarize_collection(tf.compat.v1.GraphKeys.ACTIVATIONS)",
    "summarize_tensors": f"{PACKAGE}.layers.summarize_tensor for each tensor",
    "unit_norm": "tf.math.l2_normalize(inputs, dim)",
}
_FRAMEWORK: Final = {
    "arg_scoped_arguments": "inspect.signature(function).parameters",
    "assign_from_checkpoint": (
        f"{PACKAGE}.framework.assign_from_checkpoint_fn(path, variables), a function of the session"
    ),
    "assign_from_values": "variable.load(value, session) for each variable",
    "assign_from_values_fn": "variable.load(value, session) for each variable",
    "get_local_variables": "tf.compat.v1.local_variables(scope)",
    "get_unique_variable": f"{PACKAGE}.framework.get_variables(name)[0]",
    "get_variable_full_name": "variable.op.name",
    "get_variables_by_name": f"{PACKAGE}.framework.get_variables(scope, suffix=name)",
    "get_variables_by_suffix": f"{PACKAGE}.framework.get_variables(scope, suffix=suffix)",
    "has_arg_scope": 'hasattr(function, "_key_op")',
}
# In tf.compat.v1.losses labels come first.
_LOSSES: Final = {
    "absolute_difference": "labels, predictions",
    "cosine_distance": "labels, predictions, axis",
    "log_loss": "labels, predictions",
    "mean_squared_error": "labels, predictions",
    "sigmoid_cross_entropy": "multi_class_labels, logits",
    "softmax_cross_entropy": "onehot_labels, logits",
    "sparse_softmax_cross_entropy": "labels, logits",
}
_SAME_LOSSES: Final = (
    "add_loss compute_weighted_loss get_losses get_regularization_losses get_total_loss"
)
_ALL_LOSSES: Final = {
    "": "tf.compat.v1.losses, whose losses take labels first; metric_learning has no replacement",
    **{name: f"tf.compat.v1.losses.{name}({order})" for name, order in _LOSSES.items()},
}
_AT_THRESHOLDS: Final = [
    f"{what}_{kind}s" for what in ("false", "true") for kind in ("negative", "positive")
]
REMOVED: Final[dict[str, dict[str, str]]] = {
    "framework": _FRAMEWORK,
    "layers": _LAYERS,
    "slim": _LAYERS | _FRAMEWORK,
    "losses": _ALL_LOSSES,
    "slim.losses": _ALL_LOSSES,
    "lookup": {
        "index_to_string": "tf.gather(mapping, tensor)",
        "index_to_string_table_from_tensor": (
            "tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(numbers, words), default_value)"
        ),
        "string_to_index": f"{PACKAGE}.lookup.index_table_from_tensor(mapping).lookup(tensor)",
    },
    "metrics": {
        "accuracy": "tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32))",
        "aggregate_metrics": "values, updates = zip(*metrics)",
        "count": "a local variable that tf.compat.v1.assign_add counts up",
        "f1_score": (
            "2 * p * r / (p + r), with p of tf.compat.v1.metrics.precision_at_thresholds and r of recall_at_thresholds"
        ),
        **{
            f"streaming_{kind}_at_thresholds": (
                f"tf.compat.v1.metrics.{kind}_at_thresholds(labels, predictions, thresholds)"
            )
            for kind in _AT_THRESHOLDS
        },
        "streaming_sparse_average_precision_at_k": (
            "tf.compat.v1.metrics.average_precision_at_k(labels, predictions, k)"
        ),
    },
    "opt": {
        "MomentumWOptimizer": (
            f"{PACKAGE}.opt.extend_with_decoupled_weight_decay(tf.compat.v1.train.MomentumOptimizer)"
            "(weight_decay, learning_rate=learning_rate, momentum=momentum)"
        ),
    },
    "slim.evaluation": {"evaluate_once": f"{PACKAGE}.training.evaluate_once(checkpoint_path, ...)"},
    "slim.summaries": {
        **{
            f"add_{kind}_summar{end}": f"tf.compat.v1.summary.{kind}(name, tensor)"
            for kind in ("histogram", "image")
            for end in ("y", "ies")
        },
        "add_scalar_summaries": f"{PACKAGE}.slim.summaries.add_scalar_summary for each tensor",
        **{
            f"add_zero_fraction_summar{end}": (
                "tf.compat.v1.summary.scalar(name, tf.math.zero_fraction(tensor))"
            )
            for end in ("y", "ies")
        },
    },
    "slim.tfexample_decoder": {
        "BackupHandler": "an ItemHandlerCallback whose function takes the one or the other with tf.cond",
        "LookupTensor": "an ItemHandlerCallback whose function calls table.lookup",
    },
    "training": {
        "clip_gradient_norms_fn": (
            f"lambda gradients: {PACKAGE}.training.clip_gradient_norms(gradients, max_norm)"
        ),
    },
}
"""Part -> a former name, and its replacement."""


def _not_rewritten(part: str) -> str:
    rewritten = _REWRITTEN.get(part, "").split()
    return " ".join(name for name in NAMES[part].split() if name not in rewritten)


RULES: Final[dict[str, Advice]] = joined(
    *(
        moved(f"{_CONTRIB}.{part}", f"{PACKAGE}.{part}", _not_rewritten(part), says=OURS)
        for part in NAMES
    ),
    *(by_hand(f"{_CONTRIB}.{part}", edits) for part, edits in REMOVED.items()),
    *(
        moved(f"{_CONTRIB}.{part}", "tensorflow.compat.v1.losses", _SAME_LOSSES)
        for part in ("losses", "slim.losses")
    ),
)

# Private modules that programs import, and the public one with their names.
PRIVATE_MODULES: Final = {
    f"{_CONTRIB}.layers.python.layers.utils": f"{_CONTRIB}.slim.utils",
    f"{_CONTRIB}.slim.python.slim.data.tfexample_decoder": f"{_CONTRIB}.slim.tfexample_decoder",
    f"{_CONTRIB}.layers.python.layers.initializers": f"{_CONTRIB}.slim.initializers",
    f"{_CONTRIB}.layers.python.layers.regularizers": f"{_CONTRIB}.slim.regularizers",
    f"{_CONTRIB}.slim.python.slim.data.data_decoder": f"{_CONTRIB}.slim.data_decoder",
    f"{_CONTRIB}.quantize.python.graph_matcher": f"{_CONTRIB}.quantize.graph_matcher",
    f"{_CONTRIB}.slim.python.slim.evaluation": f"{_CONTRIB}.slim.evaluation",
    f"{_CONTRIB}.slim.python.slim.summaries": f"{_CONTRIB}.slim.summaries",
    f"{_CONTRIB}.slim.python.slim.learning": f"{_CONTRIB}.slim.learning",
    f"{_CONTRIB}.slim.python.slim.queues": f"{_CONTRIB}.slim.queues",
}
MODULES: Final = {
    f"{_CONTRIB}.{part}": f"{PACKAGE}.{part}"
    for part in (*NAMES, "slim.evaluation", "slim.summaries", "slim.tfexample_decoder")
    if part not in ("data", "distributions", "rnn", "summary", "tfprof")
}

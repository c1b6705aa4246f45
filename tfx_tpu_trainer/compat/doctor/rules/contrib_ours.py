"""The names of tf.contrib that tfx_tpu_trainer.compat.contrib has: its modules' `__all__`, which a test compares."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor.rules.advice import OURS, Advice, moved

_CONTRIB: Final = "tensorflow.contrib"
PACKAGE: Final = "tfx_tpu_trainer.compat.contrib"

NAMES: Final = {
    "crf": "crf_decode crf_log_likelihood crf_log_norm crf_sequence_score viterbi_decode",
    "cudnn_rnn": "CudnnCompatibleGRUCell CudnnCompatibleLSTMCell",
    "data": "batch_and_drop_remainder padded_batch_and_drop_remainder",
    "distributions": "percentile",
    "framework": (
        "add_arg_scope add_model_variable arg_scope arg_scoped_arguments assign_from_checkpoint "
        "assign_from_checkpoint_fn assign_from_values assign_from_values_fn current_arg_scope deprecated "
        "filter_variables get_local_variables get_model_variables get_name_scope get_trainable_variables "
        "get_unique_variable get_variable_full_name get_variables get_variables_by_name "
        "get_variables_by_suffix get_variables_to_restore has_arg_scope local_variable model_variable "
        "nest smart_cond variable with_same_shape"
    ),
    "graph_editor": (
        "add_control_inputs filter_ts filter_ts_from_regex get_backward_walk_ops get_forward_walk_ops reroute_ts "
        "select_ops"
    ),
    "image": (
        "angles_to_projective_transforms compose_transforms rotate transform translate "
        "translations_to_projective_transforms"
    ),
    "layers": (
        "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES apply_regularization avg_pool2d batch_norm bias_add "
        "conv1d conv2d conv2d_transpose conv3d convolution convolution1d convolution2d "
        "convolution2d_transpose convolution3d dropout elu embed_sequence embedding_lookup_unique flatten "
        "fully_connected group_norm instance_norm l1_l2_regularizer l1_regularizer l2_regularizer "
        "layer_norm linear max_pool2d maxout one_hot_encoding optimize_loss relu relu6 repeat "
        "separable_conv2d separable_convolution2d softmax stack sum_regularizer summarize_activation "
        "summarize_activations summarize_collection summarize_tensor summarize_tensors unit_norm "
        "variance_scaling_initializer xavier_initializer xavier_initializer_conv2d"
    ),
    "lookup": (
        "HashTable HasherSpec index_table_from_file index_table_from_tensor index_to_string "
        "index_to_string_table_from_file index_to_string_table_from_tensor string_to_index"
    ),
    "losses": (
        "absolute_difference add_loss compute_weighted_loss cosine_distance get_losses "
        "get_regularization_losses get_total_loss log_loss mean_squared_error sigmoid_cross_entropy "
        "softmax_cross_entropy sparse_softmax_cross_entropy"
    ),
    "metrics": (
        "accuracy aggregate_metric_map aggregate_metrics confusion_matrix count f1_score "
        "streaming_accuracy streaming_auc streaming_concat streaming_covariance streaming_false_negatives "
        "streaming_false_negatives_at_thresholds streaming_false_positives "
        "streaming_false_positives_at_thresholds streaming_mean streaming_mean_absolute_error "
        "streaming_mean_cosine_distance streaming_mean_iou streaming_mean_relative_error "
        "streaming_mean_squared_error streaming_mean_tensor streaming_pearson_correlation "
        "streaming_percentage_less streaming_precision streaming_precision_at_thresholds streaming_recall "
        "streaming_recall_at_thresholds streaming_root_mean_squared_error "
        "streaming_sensitivity_at_specificity streaming_sparse_average_precision_at_k "
        "streaming_sparse_precision_at_k streaming_sparse_recall_at_k "
        "streaming_specificity_at_sensitivity streaming_true_negatives "
        "streaming_true_negatives_at_thresholds streaming_true_positives "
        "streaming_true_positives_at_thresholds"
    ),
    "opt": (
        "AdamWOptimizer DecoupledWeightDecayExtension MomentumWOptimizer MovingAverageOptimizer "
        "extend_with_decoupled_weight_decay"
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
        "Decoder FinalBeamSearchDecoderOutput GreedyEmbeddingHelper Helper LuongAttention "
        "SampleEmbeddingHelper ScheduledEmbeddingTrainingHelper TrainingHelper dynamic_decode gather_tree "
        "hardmax sequence_loss tile_batch"
    ),
    "slim": (
        "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES add_arg_scope add_model_variable apply_regularization "
        "arg_scope arg_scoped_arguments assign_from_checkpoint assign_from_checkpoint_fn "
        "assign_from_values assign_from_values_fn avg_pool2d batch_norm bias_add conv1d conv2d "
        "conv2d_transpose conv3d convolution convolution1d convolution2d convolution2d_transpose "
        "convolution3d current_arg_scope data_decoder deprecated dropout elu embed_sequence "
        "embedding_lookup_unique evaluation filter_variables flatten fully_connected get_local_variables "
        "get_model_variables get_trainable_variables get_unique_variable get_variable_full_name "
        "get_variables get_variables_by_name get_variables_by_suffix get_variables_to_restore group_norm "
        "has_arg_scope initializers instance_norm l1_l2_regularizer l1_regularizer l2_regularizer "
        "layer_norm learning linear local_variable losses max_pool2d maxout metrics model_variable "
        "one_hot_encoding optimize_loss queues regularizers relu relu6 repeat separable_conv2d "
        "separable_convolution2d softmax stack sum_regularizer summaries summarize_activation "
        "summarize_activations summarize_collection summarize_tensor summarize_tensors tfexample_decoder unit_norm "
        "utils variable variance_scaling_initializer xavier_initializer xavier_initializer_conv2d"
    ),
    "staging": "StagingArea",
    "summary": (
        "all_summary_ops always_record_summaries audio create_file_writer create_summary_file_writer "
        "flush generic graph histogram image initialize never_record_summaries "
        "record_summaries_every_n_global_steps scalar should_record_summaries "
        "summary_writer_initializer_op"
    ),
    "tfprof": "model_analyzer",
    "training": (
        "HParams StopAfterNEvalsHook SummaryAtEndHook add_gradients_summaries clip_gradient_norms "
        "clip_gradient_norms_fn create_train_op evaluate_once evaluate_repeatedly get_or_create_eval_step "
        "multiply_gradients parse_values train wait_for_new_checkpoint"
    ),
}
# Calls that TensorFlow 2's own functions stand for where the arguments allow: the parts' own rules tell.
_SUMMARIES: Final = (
    "all_summary_ops",
    "always_record_summaries",
    "audio",
    "create_file_writer",
    "create_summary_file_writer",
    "flush",
    "histogram",
    "image",
    "initialize",
    "never_record_summaries",
    "scalar",
)

_REWRITTEN: Final = {"data": ("batch_and_drop_remainder",), "summary": _SUMMARIES}

RULES: Final[dict[str, Advice]] = {
    name: advice
    for part, names in NAMES.items()
    for name, advice in moved(
        "contrib", OURS, f"{_CONTRIB}.{part}", f"{PACKAGE}.{part}", names
    ).items()
    if name.rpartition(".")[2] not in _REWRITTEN.get(part, ())
}

# Private modules that programs import, and the public one that has their names.
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
    for part in NAMES
    if part not in ("data", "distributions", "rnn", "summary", "tfprof")
}

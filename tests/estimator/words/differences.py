"""Where ours says something else on purpose, and why; and why rows of the original have no case."""

from typing import Any

# Beginning of a log line that ours has no use for, in cases of TPUEstimator -> why.
UNSAID = {
    "WARNING Estimators model_fn (<function>) includes": "a TPUEstimator always gives params (16)",
    "INFO _TPUContext eval_on_tpu": "a private class's account of its arguments",
    "INFO _is_running_on_cpu": "a private method's account of itself",
    "INFO training_loop marked as finished": "there are no threads to wait for",
    "INFO evaluation_loop marked as finished": "there are no threads to wait for",
    "INFO prediction_loop marked as finished": "there are no threads to wait for",
    "INFO infeed marked as finished": "there are no threads to wait for",
    "INFO outfeed marked as finished": "there are no threads to wait for",
    "WARNING Reraising captured error": "errors come out where they arise (381)",
    "ERROR Closing session due to": "errors come out where they arise (381)",
    "WARNING Setting TPUConfig.num_shards==1 is an": "one core is an ordinary layout (12)",
    "INFO TPU job name": "emulated cores have no job",
    "INFO Init TPU system": "emulated cores need none",
    "INFO Initialized TPU in": "emulated cores need none",
    "INFO Starting infeed thread": "there are no threads",
    "INFO Starting outfeed thread": "there are no threads",
    "INFO Enqueue next": "there is no infeed",
    "INFO Dequeue next": "there is no outfeed",
    "INFO Stop infeed thread": "there are no threads",
    "INFO Stop output thread": "there are no threads",
    "INFO Shutdown TPU system": "there is nothing to shut down",
    "INFO num_cores_per_replica": "the layout of emulated cores is made up",
    "INFO computation_shape": "the layout of emulated cores is made up",
    "INFO num_replicas": "the layout of emulated cores is made up",
    "INFO device_assignment.": "the layout of emulated cores is made up",
    "WARNING Running TPUEstimator.evaluate for input": "evaluation counts one host (95)",
    "INFO Bypassing TPUEstimator hook": "said on the host only where a hook was left out",
}


def log_rules(case: str) -> dict[str, Any]:
    """Returns how a case's log lines are compared; see `outcomes.difference`.

    The original's TPUEstimator calls input_fn inside of its model_fn, ours before: the same lines
    come in another order. A Keras model is spoken of before the configuration that is made for it.
    """
    if case.startswith("tpu"):
        return {"unsaid": tuple(UNSAID), "ordered": False}
    return {"ordered": not case.startswith("keras.")}


_WHEN_MADE = "found when the estimator is made, before it logs and trains"
_OF_ITS_OWN = "the original's reads only by a slip: a value where words should be"
_ONE_SET = "one set of heads has the words of the second API for both"
_NUMBERS = "found before TensorFlow's cast fails: the original's own words for it, a ValueError"

_COLUMNS = "what is not a column at all is not told to be one of TensorFlow 1"
_BEFORE = "checked before the line that model_fn is called"

_NOT_RUN = "an export runs nothing on a host, so it does not say so"
_ONE_HOST = "cores of any number of hosts evaluate and predict in any mode (95, 96)"

_WHEN_ASKED = "refused before anything is said"

# Case -> why ours differs.
CASES: dict[str, str] = {
    "heads.logits_of_rank_1_in_a_graph": _OF_ITS_OWN,
    "heads.weights_of_rank_3_in_a_graph": "TensorFlow stops the original at an op without words",
    "heads.weights_of_words": _NUMBERS,
    "heads.loss_fn_of_another_shape": _OF_ITS_OWN,
    "heads.spec_of_an_unknown_mode": "a mode that there is not is refused",
    "canned.optimizer_of_the_old_kind": "optimizers of tf.compat.v1.train are taken (heads.md)",
    "canned.column_of_another_type": _COLUMNS,
    "canned.dnn_column_of_another_type": _COLUMNS,
    "canned.dnn_column_that_is_not_dense": "without the path of a private class",
    "canned.column_of_the_first_kind": _WHEN_MADE,
    "canned.dnn_column_of_the_first_kind": _WHEN_MADE,
    "canned.combined_without_hidden_units": _WHEN_MADE,
    "canned.old_combined_without_hidden_units": _WHEN_MADE,
    "canned.old_labels_sparse": _ONE_SET,
    "canned.old_label_too_high": _ONE_SET,
    "canned.old_label_of_three_classes_too_high": _ONE_SET,
    "canned.old_weight_column_of_a_number": _WHEN_MADE,
    "canned.old_weights_of_words": _NUMBERS,
    "canned.baseline_weight_column_of_a_number": _WHEN_MADE,
    "canned.old_baseline_weight_column_of_a_number": _WHEN_MADE,
    "canned.baseline_weights": _NUMBERS,
    "tpu.model_fn_without_labels_on_the_host": _BEFORE,
    "hooks.in_memory_beside_a_table": "refused before model_fn is called for the evaluation",
    "heads.multi_class_of_a_tensor_of_two": "a ValueError, as of a number",
    "keras.weights_alone": "they are those of all outputs (428)",
    "keras.on_part_of_a_gpu": "the configuration is used: there is no session of Keras's",
    "keras.subclassed_and_called": "its values are kept (422)",
    "tpu.export_to_the_host": _NOT_RUN,
    "keras.model_and_path": "the original's word is misspelled",
    "keras.model_not_compiled": _WHEN_ASKED,
    "keras.checkpoint_format_unknown": _WHEN_ASKED,
    "keras.subclassed": "object-based checkpoints of subclassed models are made (420)",
    "keras.subclassed_without_config": "no model is made from its config (421)",
    "tpu.shards_that_are_not_there": "emulated, there are as many cores as num_shards says (91)",
    "tpu.evaluate_without_steps": "evaluates to the end of the input (206)",
    "tpu.model_fn_without_params": _BEFORE,
    "tpu.model_fn_without_labels": _BEFORE,
    "tpu.tensors": _BEFORE,
    "tpu.per_host_v2_of_tensors": _BEFORE,
    "tpu.per_core_of_a_dataset": _BEFORE,
    "tpu_cores.replica_of_more_cores_than_there_are": "emulated, there are as many cores as the "
    "replicas need (93); what one host lacks is told in the words of that",
    "tpu_cores.evaluate_on_two_hosts": _ONE_HOST,
    "tpu_cores.predict_on_two_hosts": _ONE_HOST,
    "tpu_cores.scaffold_of_features": "says what the original means to; TensorFlow stops it before",
    "tpu_cores.device_assignment_in_input_fn": _BEFORE,
    "tpu_cores.predict_with_batch_axis": _BEFORE,
    "tpu_cores.predict_broadcast_tensors": _BEFORE,
    "tpu_cores.partitions_of_other_features": _BEFORE,
    "tpu_cores.partitions_of_other_labels": _BEFORE,
    "tpu_cores.partitions_of_nested_features": _BEFORE,
    "tpu_cores.partitions_of_nested_labels": _BEFORE,
    "tpu_cores.features_of_unknown_shape": _BEFORE,
    "tpu_cores.named_features_of_unknown_shape": _BEFORE,
    "tpu_cores.embedding_of_words": _BEFORE,
    "tpu_cores.embedding_of_a_column_twice": _BEFORE,
    "tpu_cores.embedding_without_weights": _BEFORE,
    "tpu_cores.embedding_of_dense_weights": _BEFORE,
    "tpu_cores.embedding_with_a_mask_in_use": _BEFORE,
    "tpu_cores.embedding_of_weighted_dense_ids": _BEFORE,
    "tpu_cores.embedding_of_an_ordinary_column": _BEFORE,
    "tpu_cores.embedding_on_one_shard": _WHEN_ASKED,
    "tpu_cores.export_of_evaluation": _NOT_RUN,
    "tpu_cores.export_of_an_output_of_evaluation": _NOT_RUN,
    "tpu.unknown_batch": "the row's words; the original stops at an op of TensorFlow's before",
}

_REFUSED = "documented: the whole of it is refused with advice (canned.md)"
_PRIVATE = "no public name reaches it"
_HARDWARE = "needs a TPU: the session that it runs in, or its system"
_INTERNAL = "dead: a check of the original's own code on itself"
_STRATEGY = "needs a cluster, or several workers under a tf.distribute strategy"
_CONFIGS = "the original has no public name for FeatureConfig, that must come before"

# Beginning of the rows' ids -> why no case makes them happen. The longest one counts.
ROWS: dict[str, str] = {
    "canned.kmeans:": _REFUSED,
    "canned.rnn:": _REFUSED,
    "canned.linear_optimizer.": _REFUSED,
    "canned.linear:LinearSDCA.": _REFUSED,
    "canned.linear:_sdca_model_fn:": _REFUSED,
    "canned.linear:_validate_linear_sdca": _REFUSED,
    "canned.linear:_linear_model_fn": _REFUSED,
    "head.sequential_head:": _PRIVATE,
    "canned.timeseries.": _PRIVATE,
    "canned.saved_model_estimator:": _PRIVATE,
    "canned.head:_Head.": _PRIVATE,
    "canned.head:_check_logits_final_dim:": _PRIVATE,
    "canned.head:_validate_loss_fn_args:": _PRIVATE,
    "canned.head:_MultiClassHeadWithSoftmaxCrossEntropyLoss._create_tpu": _PRIVATE,
    "canned.head:_BinaryLogisticHeadWithSigmoidCrossEntropyLoss._create_tpu": _PRIVATE,
    "canned.head:_RegressionHeadWithMeanSquaredErrorLoss._create_tpu": _PRIVATE,
    "canned.head:_binary_logistic_head_with_sigmoid_cross_entropy_loss:raise:2": _PRIVATE,
    "canned.baseline:": "dead: the head reads the column before",
    "canned.dnn:dnn_logit_fn_builder_v2:": _PRIVATE,
    "canned.dnn:_dnn_model_fn_builder_v2:": "dead: units are the head's logits dimension",
    "canned.dnn_linear_combined:": "dead: the constructor checks before",
    "canned.linear:_LinearModelLayer.": _PRIVATE,
    "canned.linear:linear_logit_fn_builder_v2.": _PRIVATE,
    "export.function:": _PRIVATE,
    "hooks.fake_summary_writer:": _PRIVATE,
    "inputs.queues.": _PRIVATE,
    "tools.": "a command of the original's for checkpoints of TensorFlow 1's canned estimators",
    "canned.head:_check_dense_labels_match_logits_and_reshape:check:": _ONE_SET,
    "canned.head:_get_weights_and_check_match_logits:": _ONE_SET,
    "canned.head:_assert_range:": _ONE_SET,
    "canned.optimizers:get_optimizer_instance:raise:1": "dead: callers name a learning rate",
    "estimator:Estimator._call_input_fn:log:1": _STRATEGY,
    "tpu.tpu_context:_InternalTPUContext._validate_tpu_configuration:assert:1": _INTERNAL,
    "tpu.tpu_estimator:_create_global_step:": "dead: the graph was just made",
    "tpu.tpu_estimator:generate_per_host_v2_enqueue_ops_fn_for_host.enqueue_ops_fn:": _INTERNAL,
    "tpu.tpu_estimator:_InputPipeline._validate_input_pipeline:raise:1": "dead: behind a constant "
    "of the original's that is False",
    "tpu.tpu_estimator:_NotSaver.": "documented: the environment variable is not read (387)",
    "tpu.tpu_estimator:TPUEstimator._call_model_fn_for_inference:": _INTERNAL,
    "tpu.tpu_estimator:_clone_export_output_with_tensors:": _INTERNAL,
    "tpu.tpu_estimator:_CapturingContext.": "dead: TensorFlow refuses a tensor of the cores' loop "
    "before; ours says its words",
    "tpu.tpu_context:_InternalTPUContext.num_replicas:raise:2": _INTERNAL,
    "tpu.tpu_estimator:_create_or_get_iterations_per_loop:": _INTERNAL,
    "tpu.tpu_estimator:_InputPipeline.InputsStructureRecorder.__init__:": _INTERNAL,
    "tpu.tpu_estimator:_InputPipeline.InputsStructureRecorder.flattened_input_dims:": _INTERNAL,
    "tpu.tpu_estimator:_ModelFnWrapper.convert_to_single_tpu_predict_step.predict_step:assert:1": _INTERNAL,
    "tpu.tpu_estimator:TPUEstimator.__init__:assert:1": _INTERNAL,
    "tpu.tpu_estimator:TPUEstimator._augment_model_fn._model_fn:assert:": _INTERNAL,
    "tpu.tpu_estimator:TPUEstimator._augment_model_fn._model_fn:raise:1": "documented: the "
    "environment variable is not read (387)",
    "tpu.tpu_estimator:TPUEstimator._augment_model_fn._model_fn:log:2": "documented: there is no "
    "infeed session hook to replace (181)",
    "tpu.tpu_estimator:_OutfeedHostCall.create_enqueue_op:": _INTERNAL,
    "early_stopping:_MultiWorkerEarlyStoppingHook": _STRATEGY,
    "early_stopping:_CheckForStoppingHook": _STRATEGY,
    "early_stopping:make_early_stopping_hook:raise:3": _STRATEGY,
    "estimator:Estimator.train:raise:1": _STRATEGY,
    "estimator:Estimator._train_with_estimator_spec_distributed:": _STRATEGY,
    "estimator:Estimator._create_and_assert_global_step:": _INTERNAL,
    "estimator:Estimator._add_meta_graph_for_mode:raise:1": _INTERNAL,
    "estimator:_verify_model_fn_args:": "dead: model_fn.py has the one that is called",
    "inputs.pandas_io:pandas_input_fn:raise:1": "needs an environment without pandas",
    "run_config:_get_session_master:": _INTERNAL,
    "run_config:_count_": _INTERNAL,
    "run_config:_get_global_id_in_cluster:": _INTERNAL,
    "head.base_head:get_weights_and_check_match_logits:raise:2": "dead: a numeric column casts to "
    "its own dtype, a number's, before",
    "head.multi_head:_default_export_output:": "dead: EstimatorSpec refuses such export_outputs, "
    "and adds the default's name to a lone one",
    "hooks.hooks:_StopAtCheckpointStepHook.__init__:raise:2": "dead: every estimator has a "
    "model_dir",
    "training:_TrainingExecutor._Evaluator.evaluate_and_export:log:1": "a line of the level DEBUG, "
    "which the cases leave out; ours says it",
    "keras_lib:_get_file_from_google_storage:": "documented: paths go through tf.io.gfile (431)",
    "keras_lib:_assert_valid_model:": "documented: no model is made from its config (421)",
    "keras_lib:_create_keras_model_fn:": "documented: new optimizers train as they are (434)",
    "canned.optimizers:get_optimizer_instance_v2:": "documented: new optimizers train as they "
    "are (heads.md)",
    "training:_is_google_env:": "dead: TF_GOOGLE_ENV is not an environment of a user's",
    "training:train_and_evaluate:log:1": _STRATEGY,
    "training:_TrainingExecutor._start_": _STRATEGY,
    "training:_TrainingExecutor.__init__:raise:3": "dead: _assert_eval_spec raises before",
    "training:_TrainingExecutor.__init__:raise:4": _PRIVATE,
    "training:_NewCheckpointListenerForEvaluate.after_save:": _PRIVATE,
    "training:_TrainingExecutor._execute_evaluator_once:log:1": _PRIVATE,
    "training:_TrainingExecutor._execute_evaluator_once:log:2": _PRIVATE,
    "training:_EvalResult.": _INTERNAL,
    "tpu.error_handling:": _HARDWARE,
    "tpu.iteration_count_estimator:": _PRIVATE,
    "tpu._tpu_estimator_embedding:EmbeddingConfigSpec.__new__:raise:6": _CONFIGS,
    "tpu._tpu_estimator_embedding:EmbeddingConfigSpec.__new__:raise:7": _CONFIGS,
    "tpu._tpu_estimator_embedding:_get_slot_variable_names:": "dead: EmbeddingConfigSpec checks "
    "before that the parameters are of a kind that is known here",
    "tpu._tpu_estimator_embedding:get_configs_from_feature_columns:log:1": _PRIVATE,
    "tpu._tpu_estimator_embedding:EmbeddingConfig.": _INTERNAL,
    "tpu.tpu_estimator:_OpQueueContext": _HARDWARE,
    "tpu.tpu_estimator:TPUInfeedOutfeedSessionHook": _HARDWARE,
    "tpu.tpu_estimator:_TPUStopAtStepHook": _PRIVATE,
    "tpu.tpu_estimator:_StoppingPredictHook": _HARDWARE,
    "tpu.tpu_estimator:_CapturedObject": _INTERNAL,
    "tpu.tpu_estimator:_Inputs": _INTERNAL,
    "tpu.tpu_estimator:_PaddingSignals": _HARDWARE,
    "tpu.tpu_estimator:PeriodicLogger": _HARDWARE,
    "tpu.tpu_estimator:_verify_cross_hosts": _HARDWARE,
    "tpu.tpu_estimator:TensorPacker": "documented: nothing is packed for the transfer (126, 127)",
    "tpu.tpu_context:_InternalTPUContext.master_job:": _HARDWARE,
    "tpu.tpu_context:_InternalTPUContext._assert_mode:": _INTERNAL,
    "tpu.tpu_context:_InternalTPUContext.tpu_host_placement_function": _INTERNAL,
    "tpu.tpu_context:_InternalTPUContext.device_for_replica:": _HARDWARE,
    "tpu.util:MultiHostDatasetInitializerHook.": _HARDWARE,
    "util:MultiHostDatasetInitializerHook.": _STRATEGY,
}

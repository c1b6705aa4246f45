"""Where ours says something else on purpose, and why; and why rows of the original have no case."""

from __future__ import annotations

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
    "INFO Bypassing TPUEstimator hook": "said on the host only where a hook was left out",
}


def log_rules(case: str) -> dict[str, Any]:
    """Returns how a case's log lines are compared; see `outcomes.difference`.

    The original's TPUEstimator calls input_fn inside of its model_fn, ours before: the same lines
    come in another order. A Keras model is spoken of before the configuration that is made for it.
    """
    if case.startswith("tpu."):
        return {"unsaid": tuple(UNSAID), "ordered": False}
    return {"ordered": not case.startswith("keras.")}


_WHEN_MADE = "found when the estimator is made, before it logs and trains"
_OF_ITS_OWN = "the original's reads only by a slip: a value where words should be"
_ONE_SET = "one set of heads has the words of the second API for both"
_NUMBERS = "found before TensorFlow's cast fails: the original's own words for it, a ValueError"

_SHAPES = "the words for weights of every other wrong shape"
_COLUMNS = "what is no column at all is not told to be one of TensorFlow 1"
_BEFORE = "checked before the line that model_fn is called"

_WHEN_ASKED = "refused before anything is said"

# Case -> why ours differs.
CASES: dict[str, str] = {
    "estimator.evaluate_checkpoint_that_is_missing": "TensorFlow's NotFoundError, with the "
    "checkpoints that there are (280); the original hands on the Saver's ValueError",
    "estimator.predict_checkpoint_that_is_missing": "as in evaluate",
    "heads.logits_of_rank_1_in_a_graph": _OF_ITS_OWN,
    "heads.weights_of_rank_0": _SHAPES,
    "heads.weights_of_rank_0_in_a_graph": _SHAPES,
    "heads.weights_of_rank_3_in_a_graph": "TensorFlow stops the original at an op without words",
    "heads.weights_of_words": _NUMBERS,
    "heads.loss_fn_of_another_shape": _OF_ITS_OWN,
    "heads.spec_with_an_old_optimizer": "optimizers of tf.compat.v1.train are taken (heads.md)",
    "heads.spec_of_an_unknown_mode": "a mode that there is not is refused",
    "canned.optimizer_of_the_old_kind": "optimizers of tf.compat.v1.train are taken (heads.md)",
    "canned.column_of_another_type": _COLUMNS,
    "canned.dnn_column_of_another_type": _COLUMNS,
    "canned.dnn_column_that_is_not_dense": "without the path of a private class",
    "canned.column_of_the_first_kind": _WHEN_MADE,
    "canned.dnn_column_of_the_first_kind": _WHEN_MADE,
    "canned.combined_without_hidden_units": _WHEN_MADE,
    "canned.old_combined_without_hidden_units": _WHEN_MADE,
    "canned.old_vocabulary_of_a_string": _ONE_SET,
    "canned.old_labels_sparse": _ONE_SET,
    "canned.old_label_too_high": _ONE_SET,
    "canned.old_label_of_three_classes_too_high": _ONE_SET,
    "canned.old_weight_column_of_a_number": _WHEN_MADE,
    "canned.old_weights_of_words": _NUMBERS,
    "canned.baseline_weight_column_of_a_number": _WHEN_MADE,
    "canned.old_baseline_weight_column_of_a_number": _WHEN_MADE,
    "canned.baseline_weights": _NUMBERS,
    "tpu.model_fn_without_labels_on_the_host": _BEFORE,
    "tpu.export_to_the_host": "an export runs nothing on a host, so it does not say so",
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
    "tpu.unknown_batch": "the row's words; the original stops at an op of TensorFlow's before",
}

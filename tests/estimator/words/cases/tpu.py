"""TPUEstimator, its configuration and specs, on the host and as far as cores' graphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.words.stacks import Stack

_Case = Callable[[Stack], Any]
_ROWS = ({"x": np.zeros([64], np.float32)}, np.zeros([64], np.float32))


def _input_fn(params: dict[str, Any]) -> Any:
    data = tf.data.Dataset.from_tensor_slices(_ROWS).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def _finite_input_fn(params: dict[str, Any]) -> Any:
    return _input_fn(params).take(1)


def _unknown_batch_input_fn(params: dict[str, Any]) -> Any:
    return tf.data.Dataset.from_tensor_slices(_ROWS).repeat().batch(params["batch_size"])


def _tensors_input_fn(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    return {"x": tf.zeros([size])}, tf.zeros([size])


def _plain_input_fn() -> Any:
    return tf.data.Dataset.from_tensor_slices(_ROWS).repeat().batch(8, drop_remainder=True)


def _tpu_config(**options: Any) -> _Case:
    return lambda t: t.tpu.TPUConfig(**options)


def _run_config(**options: Any) -> _Case:
    return lambda t: t.tpu.RunConfig(**options)


def _make(t: Stack, model_fn: Any = None, cores: bool = True, **options: Any) -> Any:
    """A TPUEstimator; ours emulates its cores: two, where the case doesn't say anything of them."""

    def default(features: Any, labels: Any, mode: str, params: Any) -> Any:
        return t.tpu_spec(features, labels, mode, params["use_tpu"])

    emulated = cores and "tfx" in t.tpu.__name__
    given = options.pop("tpu_config", {"num_shards": 2} if emulated else {})
    tpu_config = t.tpu.TPUConfig(**given)
    settings = {"master": "emulated"} if emulated else {}
    config = t.tpu.RunConfig(model_dir=t.folder, tpu_config=tpu_config, **settings)
    sizes = {"train_batch_size": 16, "eval_batch_size": 16, "predict_batch_size": 16}
    given = {"config": config, "use_tpu": cores, **sizes, **options}
    return t.tpu.TPUEstimator(model_fn or default, **given)


def _made(**options: Any) -> _Case:
    return lambda t: _make(t, **options)


def _train(input_fn: Any = _input_fn, steps: Any = 1, **options: Any) -> _Case:
    return lambda t: _make(t, **options).train(input_fn, steps=steps)


def _evaluate(input_fn: Any = _input_fn, steps: Any = 1, **options: Any) -> _Case:
    return lambda t: _make(t, **options).evaluate(input_fn, steps=steps)


def _predict(input_fn: Any = _input_fn, **options: Any) -> _Case:
    return lambda t: next(_make(t, **options).predict(input_fn))


def _of(mode: str, *, cores: bool = True, **fields: Any) -> _Case:
    """Trains, evaluates or predicts with these fields in the spec."""

    def case(t: Stack) -> Any:
        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            made = {
                name: value(features, labels) if name in _LATE else value
                for name, value in fields.items()
            }
            return t.tpu_spec(features, labels, mode, cores, **made)

        return _RUNS[mode](model_fn=model_fn, cores=cores)(t)

    return case


_LATE = ("eval_metrics", "host_call", "predictions", "train_op", "loss", "scaffold_fn")
_RUNS = {"train": _train, "eval": _evaluate, "infer": _predict}


def _returning(mode: str, make: Callable[[Stack, Any, Any, str], Any]) -> _Case:
    def case(t: Stack) -> Any:
        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            return make(t, features, labels, mode)

        return _RUNS[mode](model_fn=model_fn)(t)

    return case


def _spec(mode: str = "train", **fields: Any) -> _Case:
    def case(t: Stack) -> Any:
        t.graph()
        features = {"x": tf.constant([1.0, 2.0])}
        made = {name: value() if callable(value) else value for name, value in fields.items()}
        return t.tpu_spec(features, tf.constant([1.0, 2.0]), mode, **made)

    return case


def _mean(values: Any) -> Any:
    return {"mean": tf.compat.v1.metrics.mean(values)}


def _no_labels_model_fn(features: Any, mode: Any, params: Any) -> Any:
    raise NotImplementedError


def _no_params_model_fn(features: Any, labels: Any, mode: Any) -> Any:
    raise NotImplementedError


def _receiver(t: Stack) -> Any:
    def receiver_fn() -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        return t.est.export.ServingInputReceiver({"x": x}, {"x": x})

    return receiver_fn


def _export(**options: Any) -> _Case:
    def case(t: Stack) -> Any:
        estimator = _make(t, cores=False, **options)
        estimator.train(_input_fn, steps=1)
        return estimator.export_saved_model(f"{t.folder}/export", _receiver(t))

    return case


def _resolver(t: Stack) -> Any:
    cluster = tf.train.ClusterSpec({"worker": ["h:1"]})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, master="grpc://h:1")


CASES: dict[str, _Case] = {
    # TPUConfig and RunConfig.
    "shards_of_a_string": _tpu_config(num_shards="a"),
    "shards_0": _tpu_config(num_shards=0),
    "iterations_0": _tpu_config(iterations_per_loop=0),
    "iterations_of_a_unit": _tpu_config(iterations_per_loop="3d"),
    "cores_per_replica_3": _tpu_config(num_cores_per_replica=3),
    "partitions_of_three": _tpu_config(
        input_partition_dims=[1, 2, 3], num_cores_per_replica=2, per_host_input_for_training=3
    ),
    "partitions_per_host": _tpu_config(input_partition_dims=[{}, None], num_cores_per_replica=2),
    "partitions_without_cores": lambda t: t.tpu.TPUConfig(
        input_partition_dims=[{}, None],
        per_host_input_for_training=t.tpu.InputPipelineConfig.PER_HOST_V2,
    ),
    "sleep_negative": _tpu_config(initial_infeed_sleep_secs=-1),
    "evaluation_input_unknown": _tpu_config(eval_training_input_configuration=7),
    "master_and_cluster": lambda t: t.tpu.RunConfig(master="a", cluster=_resolver(t)),
    "cluster_and_cluster_def": lambda t: t.tpu.RunConfig(
        cluster=_resolver(t),
        session_config=tf.compat.v1.ConfigProto(
            cluster_def=tf.train.ClusterSpec({"worker": ["h:1"]}).as_cluster_def()
        ),
    ),
    "job_name_in_tf_config": lambda t: (
        t.tf_config(service={"tpu_worker_job_name": "job"}),
        t.tpu.RunConfig().tpu_config,
    ),
    # The constructor.
    "config_of_another_type": lambda t: t.tpu.TPUEstimator(None, config=t.est.RunConfig()),
    "without_config": lambda t: t.tpu.TPUEstimator(None),
    "reserved_param": _made(params={"batch_size": 3}),
    "without_train_batch_size": _made(train_batch_size=None),
    "train_batch_size_of_a_string": _made(train_batch_size="a"),
    "train_batch_size_0": _made(train_batch_size=0),
    "eval_batch_size_0": _made(eval_batch_size=0),
    "predict_batch_size_0": _made(predict_batch_size=0),
    "train_batch_size_indivisible": _train(train_batch_size=15),
    "eval_batch_size_indivisible": _evaluate(eval_batch_size=15),
    "without_eval_batch_size": _evaluate(eval_batch_size=None),
    "without_predict_batch_size": _predict(predict_batch_size=None),
    "predict_batch_size_indivisible": _predict(predict_batch_size=15),
    "parallel_cores_fed_one_by_one": _made(
        tpu_config={"num_cores_per_replica": 2, "per_host_input_for_training": False}
    ),
    "api_version_3": _made(export_saved_model_api_version=3),
    "one_shard": _made(tpu_config={"num_shards": 1}),
    "shards_that_are_not_there": _train(tpu_config={"num_shards": 3}, train_batch_size=24),
    "eval_on_tpu_without_tpu": _made(cores=False, eval_on_tpu=False),
    "evaluates_on_the_host": _evaluate(eval_on_tpu=False),
    # Calls.
    "train_without_steps": _train(steps=None),
    "evaluate_without_steps": _evaluate(_finite_input_fn, steps=None),
    "train_steps_0": _train(steps=0),
    "evaluate_steps_0": _evaluate(steps=0),
    "host_train_without_steps": _train(steps=0, cores=False),
    "input_fn_without_params": _train(_plain_input_fn),
    "input_fn_without_params_in_evaluation": _evaluate(_plain_input_fn),
    "model_fn_without_params": lambda t: _train(model_fn=_no_params_model_fn)(t),
    "model_fn_without_labels": lambda t: _train(model_fn=_no_labels_model_fn)(t),
    "model_fn_without_labels_on_the_host": lambda t: _train(
        model_fn=_no_labels_model_fn, cores=False
    )(t),
    "sliced_on_the_host": lambda t: _evaluate(
        cores=False,
        tpu_config={"eval_training_input_configuration": t.tpu.InputPipelineConfig.SLICED},
    )(t),
    "unknown_batch": _train(_unknown_batch_input_fn),
    "tensors": _predict(_tensors_input_fn),
    "per_host_v2_of_tensors": lambda t: _train(
        _tensors_input_fn,
        tpu_config={"per_host_input_for_training": t.tpu.InputPipelineConfig.PER_HOST_V2},
    )(t),
    "per_core_of_a_dataset": lambda t: _train(tpu_config={"per_host_input_for_training": False})(t),
    "trains_on_the_host": _train(cores=False),
    "evaluates_on_the_host_alone": _evaluate(cores=False),
    # Specs.
    "spec_hook_of_another_type": _spec(training_hooks=["a"]),
    "spec_without_train_op": _spec(train_op=None),
    "spec_without_loss": _spec(loss=None),
    "spec_without_predictions": _spec("infer", predictions=None),
    "spec_metrics_of_a_function": _spec("eval", eval_metrics=3),
    "spec_metrics_of_three": _spec("eval", eval_metrics=(1, 2, 3)),
    "spec_metrics_without_function": _spec("eval", eval_metrics=("a", [])),
    "spec_metrics_of_a_number": _spec("eval", eval_metrics=(_mean, 3)),
    "spec_metrics_of_more_tensors": _spec(
        "eval", eval_metrics=lambda: (_mean, [tf.ones([2]), tf.ones([2])])
    ),
    "spec_host_call_of_a_number": _spec(host_call=3),
    "spec_host_call_of_three": _spec(host_call=(1, 2, 3)),
    "spec_host_call_without_function": _spec(host_call=("a", [])),
    "spec_host_call_of_no_tensors": _spec(host_call=(_mean, 3)),
    "spec_as_estimator_spec": lambda t: _spec(
        "eval", eval_metrics=lambda: (_mean, {"wrong": tf.ones([2])})
    )(t).as_estimator_spec(),
    # model_fn on cores.
    "train_of_an_estimator_spec": _returning(
        "train", lambda t, features, labels, mode: t.spec(features, labels, mode, cores=True)
    ),
    "evaluate_of_an_estimator_spec": _returning(
        "eval", lambda t, features, labels, mode: t.spec(features, labels, mode)
    ),
    "predict_of_an_estimator_spec": _returning(
        "infer", lambda t, features, labels, mode: t.spec(features, labels, mode)
    ),
    "train_of_a_chief_hook": _returning(
        "train",
        lambda t, features, labels, mode: t.spec(
            features, labels, mode, training_chief_hooks=[tf.compat.v1.train.SessionRunHook()]
        ),
    ),
    "train_of_a_scaffold": _returning(
        "train",
        lambda t, features, labels, mode: t.spec(
            features, labels, mode, cores=True, scaffold=tf.compat.v1.train.Scaffold()
        ),
    ),
    "train_without_cross_shard_optimizer": _of(
        "train",
        train_op=lambda features, labels: tf.compat.v1.assign_add(
            tf.compat.v1.train.get_or_create_global_step(), 1
        ),
    ),
    "predict_of_a_tensor": _of("infer", predictions=lambda features, labels: features["x"]),
    "evaluate_of_a_scalar_metric": _of(
        "eval", eval_metrics=lambda features, labels: (_mean, [tf.constant(1.0)])
    ),
    "evaluate_of_wrong_metric_names": _of(
        "eval", eval_metrics=lambda features, labels: (_mean, {"wrong": features["x"]})
    ),
    "train_of_a_scalar_host_call": _of(
        "train", host_call=lambda features, labels: (lambda loss: tf.no_op(), [tf.constant(1.0)])
    ),
    "train_of_wrong_host_call_names": _of(
        "train",
        host_call=lambda features, labels: (lambda loss: tf.no_op(), {"wrong": features["x"]}),
    ),
    "train_of_an_old_summary_in_a_host_call": _of(
        "train", host_call=lambda features, labels: (_old_summary, [features["x"]])
    ),
    "train_of_no_scaffold": _of("train", scaffold_fn=lambda features, labels: lambda: None),
    "train_of_wrong_host_call_names_on_the_host": _of(
        "train",
        cores=False,
        host_call=lambda features, labels: (lambda loss: tf.no_op(), {"wrong": features["x"]}),
    ),
    "evaluate_of_wrong_metric_names_on_the_host": _of(
        "eval", cores=False, eval_metrics=lambda features, labels: (_mean, {"wrong": features["x"]})
    ),
    # Exports.
    "export_nowhere": _export(export_to_tpu=False, export_to_cpu=False),
    "export_to_the_host": _export(export_to_tpu=False),
    "embedding_of_nothing": lambda t: t.tpu.experimental.EmbeddingConfigSpec(),
    "embedding_of_a_number": lambda t: t.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[3], optimization_parameters=None
    ),
    "embedding_partitions_unknown": lambda t: t.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[3], partition_strategy="a"
    ),
    "embedding_without_parameters": lambda t: t.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[_embedding()], optimization_parameters=3
    ),
}


def _embedding() -> Any:
    column = tf.feature_column.categorical_column_with_identity("x", 4)
    return tf.compat.v1.tpu.experimental.embedding_column(column, 2)


def _old_summary(loss: Any) -> Any:
    return tf.compat.v1.summary.scalar("loss", tf.reduce_mean(loss))

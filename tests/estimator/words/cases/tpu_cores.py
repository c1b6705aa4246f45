"""What input_fn and model_fn hear on cores: of their context, layouts, partitions and embeddings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.words.cases import tpu
from tests.estimator.words.stacks import Stack

_Case = Callable[[Stack], Any]


def _of_context(read: Callable[[Any], Any], *, in_model_fn: bool, **tpu_config: Any) -> _Case:
    """Trains with functions one of which reads its TPUContext."""

    def case(t: Stack) -> Any:
        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            if in_model_fn:
                read(params["context"])
            return t.tpu_spec(features, labels, mode)

        def input_fn(params: Any) -> Any:
            if not in_model_fn:
                read(params["context"])
            return tpu._input_fn(params)

        return tpu._train(input_fn, model_fn=model_fn, tpu_config=tpu_config)(t)

    return case


def _with_system(hosts: int, cores: int, case: _Case) -> _Case:
    def of_system(t: Stack) -> Any:
        t.system = (hosts, cores)
        return case(t)

    return of_system


def _in_mode(name: str, run: Callable[..., _Case], input_fn: Any, **options: Any) -> _Case:
    """Runs with one of the modes of InputPipelineConfig."""

    def case(t: Stack) -> Any:
        mode = getattr(t.tpu.InputPipelineConfig, name)
        config = {"per_host_input_for_training": mode, **options.get("tpu_config", {})}
        return run(input_fn, **{**options, "tpu_config": config})(t)

    return case


def _partitioned(features: Any, labels: Any, dims: Any) -> _Case:
    """Trains replicas of two cores on such input, cut as `dims` say."""

    def input_fn(params: Any) -> Any:
        rows = tf.nest.map_structure(lambda size: np.zeros([64, size], np.float32), features)
        goals = tf.nest.map_structure(lambda size: np.zeros([64, size], np.float32), labels)
        data = tf.data.Dataset.from_tensor_slices((rows, goals)).repeat()
        return data.batch(params["batch_size"], drop_remainder=True)

    def case(t: Stack) -> Any:
        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            return t.tpu_spec(tf.nest.flatten(features)[0], tf.nest.flatten(labels)[0], mode)

        config = {"num_cores_per_replica": 2, "input_partition_dims": dims}
        return _in_mode("PER_HOST_V2", tpu._train, input_fn, model_fn=model_fn, tpu_config=config)(
            t
        )

    return case


def _queue_input_fn(params: dict[str, Any]) -> Any:
    x = tf.compat.v1.train.limit_epochs(tf.zeros([params["batch_size"]]))
    x, y = tf.compat.v1.train.batch([x, x], 1, enqueue_many=False)
    return {"x": tf.reshape(x, [params["batch_size"]])}, tf.reshape(y, [params["batch_size"]])


def _open_rows(params: dict[str, Any]) -> Any:
    """Rows whose length is not known."""
    data = tf.data.Dataset.from_tensor_slices((tf.zeros([64, 2]), tf.zeros([64]))).repeat()
    size = params["batch_size"]
    data = data.batch(size, drop_remainder=True)
    return data.map(lambda x, y: (tf.compat.v1.placeholder_with_default(x, [size, None]), y))


def _open_named_rows(params: dict[str, Any]) -> Any:
    return _open_rows(params).map(lambda x, y: ({"x": x}, y))


def _some(features: Any, labels: Any) -> Any:
    return {"y": tf.boolean_mask(features["x"], features["x"] > 0)}


def _depending_scaffold(features: Any, labels: Any) -> Any:
    def scaffold_fn() -> Any:
        return tf.compat.v1.train.Scaffold(init_op=tf.identity(features["x"]).op)

    return scaffold_fn


def _in_old_control_flow(case: _Case) -> _Case:
    def old(t: Stack) -> Any:
        t.old_control_flow()
        return case(t)

    return old


def _descent(features: Any, labels: Any) -> Any:
    loss = tf.square(tf.compat.v1.get_variable("v", []))
    step = tf.compat.v1.train.get_or_create_global_step()
    return tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)


def _two_cores(t: Stack) -> dict[str, Any]:
    """Options of a RunConfig, which has ours emulate two cores."""
    if "tfx" not in t.tpu.__name__:
        return {}
    return {"master": "emulated", "tpu_config": t.tpu.TPUConfig(num_shards=2)}


def _logging(cores: bool) -> _Case:
    """Trains three steps, with a line of speed after each."""

    def case(t: Stack) -> Any:
        config = t.tpu.RunConfig(
            model_dir=t.folder, log_step_count_steps=1, **(_two_cores(t) if cores else {})
        )
        return tpu._train(steps=3, cores=cores, config=config)(t)

    return case


def _without_checkpoints(t: Stack) -> Any:
    config = t.tpu.RunConfig(
        model_dir=t.folder, save_checkpoints_steps=None, save_checkpoints_secs=None, **_two_cores(t)
    )
    return tpu._train(config=config)(t)


def _without_cores(t: Stack) -> Any:
    t.system = (1, 0)
    return tpu._train(config=t.tpu.RunConfig(model_dir=t.folder))(t)


def _export_all(t: Stack) -> Any:
    estimator = tpu._make(t, cores=False, export_to_tpu=True)
    estimator.train(tpu._input_fn, steps=1)

    def receiver_fn() -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        return t.est.export.TensorServingInputReceiver(x, x)

    def evaluation_fn() -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        receiver_fn = t.est.experimental.build_raw_supervised_input_receiver_fn
        return receiver_fn({"x": x}, tf.compat.v1.placeholder(tf.float32, [None], "y"))()

    return estimator.experimental_export_all_saved_models(
        f"{t.folder}/export", {"eval": evaluation_fn, "infer": receiver_fn}
    )


def _export_of_an_output_that_is_none(t: Stack) -> Any:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        outputs = {"serving_default": t.est.export.EvalOutput(loss=tf.constant(1.0))}
        if mode != "infer":
            return t.tpu_spec(features, labels, mode, False)
        return t.tpu_spec(features, labels, mode, False, export_outputs=outputs)

    estimator = tpu._make(t, model_fn, cores=False, export_to_cpu=False)
    estimator.train(tpu._input_fn, steps=1)
    return estimator.export_saved_model(f"{t.folder}/export", tpu._receiver(t))


def _ids_input_fn(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    data = tf.data.Dataset.from_tensors((tf.zeros([size, 1], tf.int64), tf.zeros([size]))).repeat()
    return data.map(lambda ids, y: ({"ids": tf.sparse.from_dense(ids + 1), "x": y}, y))


def _words_input_fn(params: dict[str, Any]) -> Any:
    return _ids_input_fn(params).map(
        lambda x, y: ({"x": x["x"], "ids": tf.sparse.map_values(tf.as_string, x["ids"])}, y)
    )


def _dense_weights_input_fn(params: dict[str, Any]) -> Any:
    return _ids_input_fn(params).map(
        lambda x, y: ({**x, "weights": tf.ones([params["batch_size"], 1])}, y)
    )


def _mask_input_fn(params: dict[str, Any]) -> Any:
    return _ids_input_fn(params).map(
        lambda x, y: ({**x, "ids__TENSOR_CORE_MASK": tf.ones([params["batch_size"], 1])}, y)
    )


def _dense_ids_input_fn(params: dict[str, Any]) -> Any:
    return _ids_input_fn(params).map(
        lambda x, y: (
            {"x": x["x"], "ids": tf.zeros([params["batch_size"]], tf.int64), "weights": y},
            y,
        )
    )


def _column(weighted: bool = False, **options: Any) -> Any:
    column = tf.feature_column.categorical_column_with_identity("ids", 16)
    if weighted:
        column = tf.feature_column.weighted_categorical_column(column, "weights")
    return tf.compat.v1.tpu.experimental.embedding_column(column, 8, **options)


def _embedded(
    columns: Callable[[], Any] = lambda: [_column()],
    input_fn: Any = _ids_input_fn,
    *,
    looked_up: bool = True,
    strategy: str = "div",
    **options: Any,
) -> _Case:
    """Trains with an embedding of columns, by default one."""

    def case(t: Stack) -> Any:
        made = columns()

        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            x = features["x"]
            if looked_up:
                layer = tf.compat.v1.keras.layers.DenseFeatures(made)
                x += tf.reduce_mean(layer(features), 1)
            return t.tpu_spec({"x": x}, labels, mode)

        spec = t.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=made,
            optimization_parameters=t.tpu.experimental.AdagradParameters(0.1)
            if hasattr(t.tpu.experimental, "AdagradParameters")
            else tf.compat.v1.tpu.experimental.AdagradParameters(0.1),
            partition_strategy=strategy,
        )
        return tpu._train(input_fn, model_fn=model_fn, embedding_config_spec=spec, **options)(t)

    return case


CASES: dict[str, _Case] = {
    # TPUContext.
    "deployment_in_model_fn": _of_context(
        lambda context: context.current_input_fn_deployment(), in_model_fn=True
    ),
    "host_in_model_fn": _of_context(lambda context: context.current_host, in_model_fn=True),
    "replicas_per_host_under_model_parallelism": _of_context(
        lambda context: context.num_of_replicas_per_host, in_model_fn=True, num_cores_per_replica=2
    ),
    "device_assignment_in_input_fn": _of_context(
        lambda context: context.device_assignment, in_model_fn=False
    ),
    # Layouts.
    "replica_of_more_cores_than_there_are": tpu._train(tpu_config={"num_cores_per_replica": 16}),
    "no_cores": _without_cores,
    "replica_over_two_hosts": _with_system(
        2, 8, tpu._train(tpu_config={"num_cores_per_replica": 16, "num_shards": 1})
    ),
    "evaluate_on_two_hosts": _with_system(2, 8, tpu._evaluate(tpu_config={"num_shards": 16})),
    "evaluate_on_two_hosts_per_host_v2": _with_system(
        2, 8, _in_mode("PER_HOST_V2", tpu._evaluate, tpu._input_fn, tpu_config={"num_shards": 16})
    ),
    "predict_on_two_hosts": _with_system(2, 8, tpu._predict(tpu_config={"num_shards": 16})),
    "predict_with_batch_axis": tpu._predict(batch_axis=[0]),
    "predict_broadcast_tensors": _in_mode("BROADCAST", tpu._predict, tpu._tensors_input_fn),
    "queue_runners": tpu._train(_queue_input_fn),
    "queue_runners_in_evaluation": tpu._evaluate(_queue_input_fn),
    # Input partitions.
    "partitions_of_other_features": _partitioned({"x": 2}, 2, [{"z": [1, 2]}]),
    "partitions_of_other_labels": _partitioned({"x": 2}, {"y": 2}, [{"x": [1, 2]}, {"z": [1, 2]}]),
    "partitions_of_nested_features": _partitioned((2, 2), 2, [[1, 2]]),
    "partitions_of_nested_labels": _partitioned({"x": 2}, (2, 2), [{"x": [1, 2]}, [1, 2]]),
    # Shapes.
    "predictions_of_unknown_length": tpu._of("infer", predictions=_some),
    "features_of_unknown_shape": _in_mode("PER_HOST_V2", tpu._train, _open_rows),
    "named_features_of_unknown_shape": _in_mode("PER_HOST_V2", tpu._train, _open_named_rows),
    # Specs, logs and exports.
    "scaffold_of_features": tpu._of("train", scaffold_fn=_depending_scaffold),
    "train_without_cross_shard_optimizer": _in_old_control_flow(
        tpu._of("train", train_op=_descent)
    ),
    "speed_on_cores": _logging(True),
    "speed_on_the_host": _logging(False),
    "without_checkpoints": _without_checkpoints,
    "export_of_evaluation": _export_all,
    "export_of_an_output_of_evaluation": _export_of_an_output_that_is_none,
    # Embeddings.
    "embedding_of_configs_of_another_type": lambda t: t.tpu.experimental.EmbeddingConfigSpec(
        feature_to_config_dict={"x": 3}, table_to_config_dict={"t": 3}
    ),
    "embedding_broadcast": _in_mode(
        "BROADCAST", lambda input_fn, **options: _embedded(**options), None
    ),
    "embedding_mod_on_the_host": _embedded(strategy="mod", eval_on_tpu=False),
    "embedding_on_one_shard": _embedded(tpu_config={"num_shards": 1}),
    "embedding_of_words": _embedded(input_fn=_words_input_fn),
    "embedding_of_a_column_twice": _embedded(lambda: [_column(), _column()]),
    "embedding_not_looked_up": _embedded(looked_up=False),
    "embedding_without_weights": _embedded(lambda: [_column(weighted=True)]),
    "embedding_of_dense_weights": _embedded(
        lambda: [_column(weighted=True)], _dense_weights_input_fn
    ),
    "embedding_with_a_mask_in_use": _embedded(
        lambda: [_column(tensor_core_shape=[2, 1], embedding_lookup_device="tpu_tensor_core")],
        _mask_input_fn,
    ),
    "embedding_of_weighted_dense_ids": _embedded(
        lambda: [_column(weighted=True, combiner=None)], _dense_ids_input_fn
    ),
    "embedding_of_an_ordinary_column": _embedded(
        lambda: [
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_identity("ids", 16), 8
            )
        ]
    ),
}

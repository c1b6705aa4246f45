"""A model with embedding columns, on emulated cores, on the host and as plain TensorFlow.

The model is TensorFlow 1 style code that runs unchanged on the original's TPUEstimator
(`record_original_embeddings.py`) and on ours.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu
from tensorflow.python.tpu.ops import tpu_ops

v1 = tf.compat.v1

ROWS, WORDS, TAGS, DIMENSION = 24, 10, 6, 4
BATCH = 8
RATE = 0.1
LABEL_WEIGHTS = np.linspace(-1, 1, WORDS).astype(np.float32)

WORD_TABLE = "input_layer/word_embedding/embedding_weights"
TAG_TABLE = "input_layer/tag_embedding/embedding_weights"


def initial(rows: int, shift: float = 0.0) -> np.ndarray:
    """First values of a table: no two alike, none zero."""
    return np.cos(np.arange(rows * DIMENSION) + shift).reshape(rows, DIMENSION).astype(np.float32)


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Word ids [24, 3] with -1 where there is none, tag ids [24, 1], labels [24, 1]."""
    random = np.random.RandomState(5)
    words = random.randint(0, WORDS, (ROWS, 3))
    words[random.uniform(size=words.shape) < 0.3] = -1
    tags = random.randint(0, TAGS, (ROWS, 1))
    labels = np.where(words >= 0, LABEL_WEIGHTS[words], 0).sum(1, keepdims=True) + tags / 10
    return words, tags, labels.astype(np.float32)


def sparse_value(ids: np.ndarray) -> v1.SparseTensorValue:
    """The ids that are there, as a session is fed with them."""
    indices = np.argwhere(ids >= 0)
    return v1.SparseTensorValue(indices, ids[tuple(indices.T)].astype(np.int64), ids.shape)


def sparse(ids: np.ndarray) -> tf.SparseTensor:
    """The ids that are there."""
    return tf.SparseTensor(*sparse_value(ids))


def input_fn(params: dict[str, Any], *, repeated: bool = True) -> tf.data.Dataset:
    """Sparse words and tags, in full batches without end, or once."""
    words, tags, labels = data()
    features = {"word": sparse(words), "tag": sparse(tags)}
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    dataset = dataset.repeat() if repeated else dataset
    return dataset.batch(params["batch_size"], drop_remainder=repeated)


def finite_input_fn(params: dict[str, Any], *, rows: int = ROWS) -> tf.data.Dataset:
    """The first rows once, the last batch short."""
    all_rows = input_fn({"batch_size": 1}, repeated=False).unbatch()
    return all_rows.take(rows).batch(params["batch_size"])


def columns(
    combiner: str = "mean", learning_rate_fn: Callable[[Any], Any] | None = None
) -> list[Any]:
    """A TPU embedding column of words and one of tags."""
    made = []
    for name, size, shift in (("word", WORDS, 0.0), ("tag", TAGS, 0.5)):
        made.append(
            v1.tpu.experimental.embedding_column(
                tf.feature_column.categorical_column_with_identity(name, size),
                DIMENSION,
                combiner=combiner,
                initializer=v1.constant_initializer(initial(size, shift)),
                learning_rate_fn=learning_rate_fn,
            )
        )
    return made


def output(activations: tf.Tensor) -> tf.Tensor:
    """What the model makes of its embeddings, side by side."""
    weights = v1.get_variable(
        "out",
        shape=[activations.shape[1], 1],
        initializer=v1.constant_initializer(np.linspace(-1, 1, activations.shape[1])),
        use_resource=True,
    )
    return tf.matmul(tf.tanh(activations), weights)


def metric_fn(labels: tf.Tensor, outputs: tf.Tensor) -> dict[str, Any]:
    """Mean squared error and mean output."""
    return {
        "error": v1.metrics.mean_squared_error(labels, outputs),
        "mean": v1.metrics.mean(outputs),
    }


def model_fn_for(
    tpu: Any,
    *,
    activations: Callable[[dict[str, Any]], tf.Tensor] | None = None,
    optimizer: Callable[[], Any] = lambda: v1.train.GradientDescentOptimizer(RATE),
    reduction: str = v1.losses.Reduction.MEAN,
    scaffold_fn: Callable[[], Any] | None = None,
    export_outputs: Callable[[tf.Tensor], Any] | None = None,
) -> Callable[..., Any]:
    """A model_fn.

    Args:
        tpu: The API: ours or the original's.
        activations: Returns the embeddings of the features, side by side. Defaults to the input
            layer of `columns()`.
        optimizer: Returns the optimizer of what is no table.
        reduction: How gradients of the cores are combined; with SUM the loss is a sum.
        scaffold_fn: Of the spec.
        export_outputs: Returns those of an output.
    """
    of_columns = columns()

    def input_layer(features: Any) -> tf.Tensor:
        return v1.feature_column.input_layer(features, of_columns)

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        outputs = output((activations or input_layer)(features))
        if mode == "infer":
            exports = export_outputs(outputs) if export_outputs else None
            return tpu.TPUEstimatorSpec(
                mode, predictions={"output": outputs}, export_outputs=exports
            )
        reduce = tf.reduce_mean if reduction == v1.losses.Reduction.MEAN else tf.reduce_sum
        loss = reduce(tf.square(outputs - labels))
        inner = optimizer()
        if params["use_tpu"]:
            inner = v1.tpu.CrossShardOptimizer(inner, reduction=reduction)
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=inner.minimize(loss, v1.train.get_global_step()),
            eval_metrics=(metric_fn, [labels, outputs]),
            scaffold_fn=scaffold_fn,
        )

    return model_fn


def estimator(
    tpu: Any,
    folder: Any,
    spec: Any,
    model_fn: Callable[..., Any],
    *,
    cores: int | None,
    **options: Any,
) -> Any:
    """An estimator on emulated cores, or with `cores=None` on the host."""
    mode = options.pop("input_mode", tpu.InputPipelineConfig.PER_HOST_V1)
    position = {key: options.pop(key) for key in ("save_input_position",) if key in options}
    tpu_config = tpu.TPUConfig(
        iterations_per_loop=2,
        num_shards=cores,
        num_cores_per_replica=None if cores is None else 1,
        per_host_input_for_training=mode,
    )
    config = tpu.RunConfig(
        model_dir=str(folder),
        tpu_config=tpu_config,
        **position,
        **({} if cores is None else {"master": "emulated"}),
    )
    sizes = {"train_batch_size": BATCH, "eval_batch_size": BATCH, "predict_batch_size": BATCH}
    return tpu.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=cores is not None,
        embedding_config_spec=spec,
        **{**sizes, **options},
    )


def under_strategy(
    tpu: Any,
    folder: Any,
    parameters: Any,
    strategy: Any,
    *,
    model_fn: Callable[..., Any] | None = None,
    spec: Any = None,
    save_input_position: bool = False,
    **options: Any,
) -> Any:
    """An estimator under a `tf.distribute` strategy, with a column of words and one of tags."""
    config = tpu.RunConfig(
        model_dir=str(folder),
        train_distribute=strategy,
        eval_distribute=strategy,
        tpu_config=tpu.TPUConfig(iterations_per_loop=2),
        save_input_position=save_input_position,
    )
    sizes = {"train_batch_size": BATCH, "eval_batch_size": BATCH, "predict_batch_size": BATCH}
    return tpu.TPUEstimator(
        model_fn or model_fn_for(tpu),
        config=config,
        embedding_config_spec=spec or tpu.EmbeddingConfigSpec(columns(), parameters),
        **{**sizes, **options},
    )


def variables(estimator: Any) -> dict[str, np.ndarray]:
    """All variables of the latest checkpoint."""
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def plain_training(
    steps: int,
    table_optimizer: Callable[[tf.Tensor], v1.train.Optimizer],
    *,
    combiner: str = "mean",
    summed: bool = False,
    multiplier: Callable[[tf.Tensor], Any] = lambda step: 1.0,
) -> dict[str, np.ndarray]:
    """Trains two ordinary embeddings and the output's weights, without an estimator.

    Args:
        steps: Steps to make, each on a global batch.
        table_optimizer: Returns the embeddings' optimizer; takes the step's number.
        combiner: Of both embeddings.
        summed: Whether the loss is a sum, not a mean.
        multiplier: What the embeddings' gradients are multiplied by; takes the step's number.

    Returns:
        Variable name -> value.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.sparse_placeholder(tf.int64, [BATCH, 3])
        tags = v1.sparse_placeholder(tf.int64, [BATCH, 1])
        labels = v1.placeholder(tf.float32, [BATCH, 1])
        step = v1.placeholder(tf.int64, [])
        tables = [
            v1.get_variable(name, initializer=value, use_resource=True)
            for name, value in (
                (TAG_TABLE, initial(TAGS, 0.5)),
                (WORD_TABLE, initial(WORDS)),
            )
        ]
        outputs = output(
            tf.concat(
                [
                    tf.nn.safe_embedding_lookup_sparse(table, ids, combiner=combiner)
                    for table, ids in zip(tables, (tags, words))
                ],
                axis=1,
            )
        )
        errors = tf.square(outputs - labels)
        loss = tf.reduce_sum(errors) if summed else tf.reduce_mean(errors)
        optimizer = table_optimizer(step)
        scaled = [
            (tf.IndexedSlices(slices.values * multiplier(step), slices.indices), table)
            for slices, table in optimizer.compute_gradients(loss, tables)
        ]
        rest = [v for v in v1.trainable_variables() if not any(v is table for table in tables)]
        train_op = tf.group(
            optimizer.apply_gradients(scaled),
            v1.train.GradientDescentOptimizer(RATE).minimize(loss, var_list=rest),
        )
        session.run(v1.global_variables_initializer())
        for number, (some_words, some_tags, some_labels) in zip(range(steps), batches()):
            feed = {
                words: sparse_value(some_words),
                tags: sparse_value(some_tags),
                labels: some_labels,
                step: number,
            }
            session.run(train_op, feed)
        return dict(
            zip((v.op.name for v in v1.global_variables()), session.run(v1.global_variables()))
        )


def batches() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The global batches of `input_fn`, again and again."""
    while True:
        for start in range(0, ROWS, BATCH):
            yield tuple(part[start : start + BATCH] for part in data())


_SLOTS = {
    "stochastic_gradient_descent": (),
    "adagrad": ("accumulators",),
    "adam": ("momenta", "velocities"),
    "ftrl": ("accumulators", "linears"),
}


class _Kept:
    """A value in the cores' memory; functions that are traced again can't make a `tf.Variable`."""

    def __init__(self, shape: tf.TensorShape) -> None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=shape, shared_name=f"core_memory_{id(self)}"
            )

    def assign(self, value: Any) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.cast(value, tf.float32))

    def read_value(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.float32)

    def numpy(self) -> Any:
        return self.read_value().numpy()


class CoreMemory:
    """Stands in for the ops by which a host sets the cores up, loads tables there and retrieves them.

    They have no kernels without a TPU. TensorFlow's Python code around them is its own.

    Attributes:
        tables: Name of a table -> name of what is kept of it -> the value, as it was loaded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables: dict[str, dict[str, _Kept]] = {}
        self._is_set_up = False

        def set_up(*_: Any, **__: Any) -> None:
            self._is_set_up = True

        monkeypatch.setattr(tpu_ops, "is_tpu_embedding_initialized", lambda: self._is_set_up)
        monkeypatch.setattr(tpu, "initialize_system_for_tpu_embedding", set_up)
        for optimizer, slots in _SLOTS.items():
            end = f"tpu_embedding_{optimizer}_parameters"
            monkeypatch.setattr(tpu_ops, f"load_{end}", self._load)
            monkeypatch.setattr(tpu_ops, f"retrieve_{end}", self._retrieval(slots))

    @tf.autograph.experimental.do_not_convert
    def _load(
        self, *, table_name: str, num_shards: int, shard_id: int, config: Any, **values: Any
    ) -> None:
        assert (num_shards, shard_id) == (1, 0)
        if table_name not in self.tables:
            self.tables[table_name] = {name: _Kept(value.shape) for name, value in values.items()}
        kept = self.tables[table_name]
        for name, value in values.items():
            kept[name].assign(value)

    def _retrieval(self, slots: tuple[str, ...]) -> Any:
        @tf.autograph.experimental.do_not_convert
        def retrieve(*, table_name: str, num_shards: int, shard_id: int, config: Any) -> Any:
            kept = self.tables[table_name]
            values = tuple(kept[name].read_value() for name in ("parameters", *slots))
            return values if slots else values[0]

        return retrieve

"""What a head does in each mode, and what an Estimator with one learns, as plain values.

The same program for the original and for ours.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.heads import head_cases

v1 = tf.compat.v1


def head_facts(head: Any, case: head_cases.Case) -> dict[str, Any]:
    """Runs `create_estimator_spec` of a head in each mode on the case's batches."""
    return {
        "properties": [head.name, head.logits_dimension],
        "predict": _predict(head, case),
        "eval": _evaluate(head, case),
        "train": _train(head, case),
    }


def eager_facts(head: Any, case: head_cases.Case) -> dict[str, Any]:
    """Calls the head's methods eagerly, as a loop of one's own would."""
    metrics = head.metrics(regularization_losses=_regularization(case))
    losses = []
    for batch in head_cases.batches(case):
        given = _mapped(_as_tensor, batch)
        losses.append(_plain(head.loss(regularization_losses=_regularization(case), **given)))
        metrics = head.update_metrics(
            eval_metrics=metrics, regularization_losses=_regularization(case), **given
        )
    return {
        "losses": losses,
        "metrics": {name: _plain(metric.result()) for name, metric in metrics.items()},
        "reduction": head.loss_reduction,
    }


def _predict(head: Any, case: head_cases.Case) -> dict[str, Any]:
    batch = head_cases.batches(case)[0]
    with tf.Graph().as_default():
        inputs = _mapped(_placeholder, batch["logits"])
        spec = head.create_estimator_spec(features={}, mode="infer", logits=inputs)
        with _session() as session:
            predictions = session.run(spec.predictions, _feed(inputs, batch["logits"]))
        examples = v1.placeholder(tf.string, [None])
        signatures = {
            name: _signature(output.as_signature_def({"examples": examples}))
            for name, output in spec.export_outputs.items()
        }
    return {
        "predictions": {
            "/".join([k] if isinstance(k, str) else k): _plain(v) for k, v in predictions.items()
        },
        "dtypes": {
            "/".join([k] if isinstance(k, str) else k): v.dtype.name
            for k, v in spec.predictions.items()
        },
        "signatures": signatures,
    }


def _evaluate(head: Any, case: head_cases.Case) -> dict[str, Any]:
    with _fed(case) as (inputs, feeds):
        spec = head.create_estimator_spec(mode="eval", **inputs)
        values, updates = _split(spec.eval_metric_ops)
        with _session(metrics=spec.eval_metric_ops) as session:
            losses = [session.run([spec.loss, updates], feed)[0] for feed in feeds]
            return {"losses": _plain(losses), "metrics": _plain(session.run(values))}


def _train(head: Any, case: head_cases.Case) -> dict[str, Any]:
    with _fed(case) as (inputs, feeds):
        spec = head.create_estimator_spec(
            mode="train", train_op_fn=lambda loss: tf.identity(2.0 * loss), **inputs
        )
        summaries = v1.summary.merge_all()
        with _session() as session:
            ran = [session.run([spec.loss, spec.train_op, summaries], feed) for feed in feeds]
    return {
        "losses": _plain([loss for loss, _, _ in ran]),
        "train_ops": _plain([op for _, op, _ in ran]),
        "summaries": [_read_summaries(written) for _, _, written in ran],
    }


class _fed:  # noqa: N801 - used as a function
    """A graph with placeholders for the batches of a case, and feeds for them."""

    def __init__(self, case: head_cases.Case) -> None:
        self._case = case
        self._graph = tf.Graph().as_default()

    def __enter__(self) -> tuple[dict[str, Any], list[dict[Any, Any]]]:
        self._graph.__enter__()
        batches = head_cases.batches(self._case)
        inputs = _mapped(_placeholder, batches[0])
        feeds = [_feed(inputs, batch) for batch in batches]
        regularization = [tf.constant(value) for value in self._case.regularization]
        return {**inputs, "regularization_losses": regularization or None}, feeds

    def __exit__(self, *exception: Any) -> None:
        self._graph.__exit__(*exception)


def _regularization(case: head_cases.Case) -> list[tf.Tensor] | None:
    return [tf.constant(value) for value in case.regularization] or None


def _mapped(function: Any, values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _mapped(function, value) for key, value in values.items()}
    return function(values)


def _placeholder(value: Any) -> Any:
    if isinstance(value, v1.SparseTensorValue):
        return v1.sparse_placeholder(_dtype(value.values), value.dense_shape)
    return v1.placeholder(_dtype(value), [None, *value.shape[1:]])


def _dtype(values: Any) -> tf.DType:
    return (
        tf.convert_to_tensor(np.asarray(values).tolist()).dtype
        if isinstance(np.asarray(values).flat[0], str)
        else tf.as_dtype(np.asarray(values).dtype)
    )


def _as_tensor(value: Any) -> Any:
    if isinstance(value, v1.SparseTensorValue):
        return tf.SparseTensor(value.indices, value.values, value.dense_shape)
    return tf.convert_to_tensor(value.tolist() if value.dtype == object else value)


def _feed(inputs: Any, values: Any) -> dict[Any, Any]:
    return dict(zip(_leaves(inputs), _leaves(values)))


def _leaves(values: Any) -> list[Any]:
    if not isinstance(values, Mapping):
        return [values]
    return [leaf for key in sorted(values) for leaf in _leaves(values[key])]


def _split(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    values, updates = {}, []
    for name, metric in metrics.items():
        if hasattr(metric, "result"):
            values[name] = metric.result()
            updates.extend(metric.updates)
        else:
            values[name], update = metric
            updates.append(update)
    return values, updates


class _session:  # noqa: N801 - used as a function
    """A session with everything initialized, metrics too."""

    def __init__(self, metrics: Mapping[str, Any] | None = None) -> None:
        variables = [v for m in (metrics or {}).values() for v in getattr(m, "variables", ())]
        self._initial = [
            v1.global_variables_initializer(),
            v1.local_variables_initializer(),
            v1.tables_initializer(),
            v1.variables_initializer(variables),
        ]
        self._session = v1.Session()

    def __enter__(self) -> v1.Session:
        session = self._session.__enter__()
        session.run(self._initial)
        return session

    def __exit__(self, *exception: Any) -> None:
        self._session.__exit__(*exception)
        self._session.close()


def _signature(signature: Any) -> dict[str, Any]:
    return {
        "method": signature.method_name,
        "inputs": sorted(signature.inputs),
        "outputs": {
            key: [tf.as_dtype(info.dtype).name, _shape(info.tensor_shape)]
            for key, info in signature.outputs.items()
        },
    }


def _shape(proto: Any) -> list[int] | None:
    return None if proto.unknown_rank else [dimension.size for dimension in proto.dim]


def _read_summaries(written: bytes) -> dict[str, float]:
    summary = v1.Summary.FromString(written)
    return {value.tag: value.simple_value for value in summary.value}


def _plain(value: Any) -> Any:
    """Returns a value as JSON knows it."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "numpy"):
        value = value.numpy()
    array = np.asarray(value)
    return [_plain(part) for part in array] if array.ndim else _scalar(array.item())


def _scalar(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def flattened(facts: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every leaf of facts with its path."""
    if isinstance(facts, Mapping):
        for key in facts:
            yield from flattened(facts[key], f"{path}.{key}")
    elif isinstance(facts, list):
        for number, part in enumerate(facts):
            yield from flattened(part, f"{path}[{number}]")
    else:
        yield path, facts


STEPS = 7
ROWS = 12
BATCH = 4

# Name -> makes an optimizer from a module of legacy Keras optimizers.
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda keras: keras.SGD(0.1),
    "momentum": lambda keras: keras.SGD(0.1, momentum=0.9, decay=0.01),
    "Adam": lambda keras: keras.Adam(0.1),
    "Adagrad": lambda keras: keras.Adagrad(0.1),
    "Ftrl": lambda keras: keras.Ftrl(0.1, l1_regularization_strength=0.01),
    "RMSprop": lambda keras: keras.RMSprop(0.05),
}


def input_fn() -> tf.data.Dataset:
    generator = np.random.default_rng(7)
    x = generator.normal(size=[ROWS, 3]).astype(np.float32)
    features = {"x": x, "weight": generator.uniform(0.5, 2.0, [ROWS]).astype(np.float32)}
    labels = (x.sum(axis=1, keepdims=True) > 0).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat(4).batch(BATCH)


def model_fn_for(head: Any, make_optimizer: Callable[[], Any]) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("linear/w", [3, 1], initializer=v1.constant_initializer(0.25))
        b = v1.get_variable("linear/b", [1], initializer=v1.zeros_initializer())
        optimizer = make_optimizer()
        if mode == "train":
            optimizer.iterations = v1.train.get_or_create_global_step()
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            logits=features["x"] @ w + b,
            labels=labels,
            optimizer=optimizer if mode == "train" else None,
            trainable_variables=[w, b],
            regularization_losses=[0.01 * tf.reduce_sum(w * w)],
        )

    return model_fn


def trained_facts(estimator_module: Any, keras: Any, name: str, folder: str) -> dict[str, Any]:
    """Trains, evaluates and predicts; gives the variables, metrics and predictions."""
    head = estimator_module.BinaryClassHead("weight", thresholds=[0.4])
    estimator = estimator_module.Estimator(
        model_fn_for(head, lambda: OPTIMIZERS[name](keras)), model_dir=folder
    )
    estimator.train(input_fn, steps=STEPS)
    variables = {key: estimator.get_variable_value(key) for key in estimator.get_variable_names()}
    metrics = estimator.evaluate(input_fn)
    (first, *_) = estimator.predict(input_fn)
    return {
        "variables": {key: np.asarray(value).tolist() for key, value in variables.items()},
        "metrics": {key: float(value) for key, value in metrics.items()},
        "prediction": {
            key: np.asarray(value).tolist()
            for key, value in first.items()
            if key != "classes" and key != "all_classes"
        },
    }

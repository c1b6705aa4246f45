"""The original's `experimental`: functions that make logits, and names that are not supported."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._user_calls import call_with
from tfx_tpu_trainer.estimator.canned._dnn import Deep, v1_dnn_logits
from tfx_tpu_trainer.estimator.canned._linear import Linear, summarize_weights


def linear_logit_fn_builder(
    units: int, feature_columns: Iterable[Any], sparse_combiner: str = "sum"
) -> Callable[[Any], tf.Tensor]:
    """Returns the function from features to the logits of a linear model.

    Args:
        units: Length of a row of logits.
        feature_columns: Feature columns.
        sparse_combiner: `"mean"`, `"sqrtn"` or `"sum"`, the default.
    """
    linear = Linear(tuple(feature_columns), None, sparse_combiner)

    def linear_logit_fn(features: Any) -> tf.Tensor:
        logits, variables = linear.logits(features, units)
        summarize_weights(variables, units)
        return logits

    return linear_logit_fn


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Iterable[Any],
    activation_fn: Any,
    dropout: float | None,
    input_layer_partitioner: Callable[..., Any] | None,
    batch_norm: bool,
) -> Callable[[Any, str], tf.Tensor]:
    """Returns the function from features and mode to the logits of a deep model.

    Args:
        units: Length of a row of logits.
        hidden_units: Width of each hidden layer.
        feature_columns: Dense feature columns.
        activation_fn: Activation of the hidden layers.
        dropout: Share of the values that training drops, or `None`.
        input_layer_partitioner: Partitioner of the columns' variables, or `None`.
        batch_norm: Whether each hidden layer's output is normalized.

    Raises:
        ValueError: If `units` is not an int.
    """
    if isinstance(units, bool) or not isinstance(units, int):
        raise ValueError(f"units must be an int.  Given type: {type(units)}, value: {units!r}")
    columns = tuple(feature_columns)
    deep = Deep(columns, None, hidden_units, activation_fn, dropout, batch_norm)
    checked = deep.with_checked_layers()

    def dnn_logit_fn(features: Any, mode: str) -> tf.Tensor:
        return v1_dnn_logits(features, mode, checked, units, input_layer_partitioner)

    return dnn_logit_fn


def call_logit_fn(
    logit_fn: Callable[..., Any],
    features: Any,
    mode: str,
    params: Mapping[str, Any] | None,
    config: Any,
) -> Any:
    """Calls a function that makes logits with the arguments that it takes.

    Mirrors `tf.estimator.experimental.call_logit_fn`.

    Args:
        logit_fn: Takes `features`; may take `mode`, `params` and `config`.
        features: The features from input_fn.
        mode: One of `ModeKeys`.
        params: Parameters, or `None`.
        config: The run's configuration.

    Returns:
        A tensor of logits, or a dict of them.

    Raises:
        ValueError: If logit_fn returns something else.
    """
    available = {"features": features, "mode": mode, "params": params, "config": config}
    logits = call_with(logit_fn, available, required=("features",))
    by_name = isinstance(logits, dict) and all(
        isinstance(name, str) and isinstance(value, tf.Tensor) for name, value in logits.items()
    )
    if not (by_name or isinstance(logits, tf.Tensor)):
        raise ValueError(
            "logit_fn should return a Tensor or a dictionary mapping strings to Tensors.  logit_fn "
            f"returned: {logits}, of {logit_fn!r}."
        )
    return logits


class _Unsupported:
    """A name that programs import, and whose constructor always fails."""

    _advice: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Always fails."""
        raise NotImplementedError(
            f"{type(self).__name__} is not part of tfx_tpu_trainer. {self._advice}"
        )


class LinearSDCA(_Unsupported):
    """Not supported: `tf.estimator.experimental.LinearSDCA`."""

    _advice = (
        "Its kernels read whole examples by id and run on one host only. Use "
        "LinearClassifier(optimizer=tf.keras.optimizers.legacy.Ftrl(0.2, "
        "l1_regularization_strength=..., l2_regularization_strength=...)), which regularizes in the same way."
    )

    def __init__(
        self,
        example_id_column: Any,
        num_loss_partitions: int = 1,
        num_table_shards: Any = None,
        symmetric_l1_regularization: float = 0.0,
        symmetric_l2_regularization: float = 1.0,
        adaptive: bool = False,
    ) -> None:
        """Always fails; see the base."""
        super().__init__()


class KMeans(_Unsupported):
    """Not supported: `tf.compat.v1.estimator.experimental.KMeans`."""

    _advice = (
        "Use sklearn.cluster.MiniBatchKMeans, or tft.bucketize and embeddings in Transform to use "
        "clusters as features of a model."
    )
    SQUARED_EUCLIDEAN_DISTANCE = "squared_euclidean"
    COSINE_DISTANCE = "cosine"
    RANDOM_INIT = "random"
    KMEANS_PLUS_PLUS_INIT = "kmeans_plus_plus"
    SCORE = "score"
    CLUSTER_INDEX = "cluster_index"
    CLUSTER_CENTERS_VAR_NAME = "clusters"
    ALL_DISTANCES = "all_distances"

    def __init__(
        self,
        num_clusters: int,
        model_dir: Any = None,
        initial_clusters: Any = RANDOM_INIT,
        distance_metric: str = SQUARED_EUCLIDEAN_DISTANCE,
        seed: int | None = None,
        use_mini_batch: bool = True,
        mini_batch_steps_per_iteration: int = 1,
        kmeans_plus_plus_num_retries: int = 2,
        relative_tolerance: float | None = None,
        config: Any = None,
        feature_columns: Any = None,
    ) -> None:
        """Always fails; see the base."""
        super().__init__()


_RNN_ADVICE = (
    "Write a model_fn with the layers of Keras 2 (tf.keras.layers.GRU or LSTM on the sequence) "
    "and pass its logits to a head's create_estimator_spec."
)


class RNNClassifier(_Unsupported):
    """Not supported: `tf.estimator.experimental.RNNClassifier`."""

    _advice = f"{_RNN_ADVICE} BinaryClassHead and MultiClassHead are the heads of classifiers."

    def __init__(
        self,
        sequence_feature_columns: Any,
        context_feature_columns: Any = None,
        units: Any = None,
        cell_type: Any = "simple_rnn",
        rnn_cell_fn: Any = None,
        return_sequences: bool = False,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Adagrad",
        loss_reduction: str = "sum_over_batch_size",
        sequence_mask: str = "sequence_mask",
        config: Any = None,
    ) -> None:
        """Always fails; see the base."""
        super().__init__()


class RNNEstimator(_Unsupported):
    """Not supported: `tf.estimator.experimental.RNNEstimator`."""

    _advice = _RNN_ADVICE

    def __init__(
        self,
        head: Any,
        sequence_feature_columns: Any,
        context_feature_columns: Any = None,
        units: Any = None,
        cell_type: Any = "simple_rnn",
        rnn_cell_fn: Any = None,
        return_sequences: bool = False,
        model_dir: Any = None,
        optimizer: Any = "Adagrad",
        config: Any = None,
    ) -> None:
        """Always fails; see the base."""
        super().__init__()

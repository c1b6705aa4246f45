"""Canned estimators of the original that are not here: each says what to use instead."""

from __future__ import annotations

from typing import Any


class _Unsupported:
    """A name that programs import; making one is an error."""

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
        "l1_regularization_strength=..., l2_regularization_strength=...)), which regularizes alike."
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

"""A head of several objectives."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._argument_checks import as_items, check_is_number
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.export._outputs import ExportOutput, PredictOutput
from tfx_tpu_trainer.estimator.heads import _losses
from tfx_tpu_trainer.estimator.heads._head import Head, MetricKeys, SignatureKeys, check_head
from tfx_tpu_trainer.estimator.heads._losses import check_labels_given
from tfx_tpu_trainer.estimator.heads._single_head import BuiltInHead

v1 = tf.compat.v1


class MultiHead(BuiltInHead):
    """Several heads on one model; mirrors `tf.estimator.MultiHead`.

    The loss is the sum of the heads' losses, metrics end in the heads' names, keys of predictions
    are pairs (head's name, prediction key), and the first head is served by default. Labels are a
    dict of head's name to labels. Logits are a dict too, or one tensor whose last axis is split
    among the heads in their order.

    Examples:
        The first logit is for the fare, the second for the tip:

        >>> from tfx_tpu_trainer.estimator import BinaryClassHead, MultiHead, RegressionHead
        >>> import tensorflow as tf
        >>> head = MultiHead([RegressionHead(name="fare"), BinaryClassHead(name="tip")])
        >>> logits = tf.constant([[12.0, 3.0]])
        >>> sorted(head.predictions(logits))[-1]
        ('tip', 'probabilities')
        >>> print(head.predictions(logits)["fare", "predictions"].numpy())
        [[12.]]
    """

    _scope = (None, "multi_head")

    def __init__(self, heads: Sequence[Head], head_weights: Sequence[float] | None = None) -> None:
        """Checks the heads.

        Args:
            heads: At least one head, each with a unique name.
            head_weights: Factors of the heads' losses. Defaults to `None`: ones.

        Raises:
            ValueError: If there is no head, names are missing or not unique, or there are not as many
                weights as heads.
            TypeError: If `heads` is not a list, or `head_weights` not a list of numbers.
            AttributeError: If an item is not a head.
        """
        given, heads = heads, as_items("heads", heads, '[RegressionHead(name="fare")]')
        if not heads:
            raise ValueError(f"Must specify heads. Given: {given!r}.")
        for number, head in enumerate(heads):
            check_head(head, f"heads[{number}]")
        names = [head.name for head in heads]
        for head, name in zip(heads, names):
            if not name:
                raise ValueError(f"All given heads must have name specified. Given: {head!r}.")
        if len(set(names)) != len(names):
            raise ValueError(f"Heads must have unique names. Given: {names}.")
        head_weights = as_items("head_weights", head_weights, "[1.0, 2.0]")
        for weight in head_weights:
            check_is_number("head_weights", weight)
        if head_weights and len(head_weights) != len(heads):
            raise ValueError(
                f"heads and head_weights must have the same size. Given len(heads): {len(heads)}. "
                f"Given len(head_weights): {len(head_weights)}."
            )
        self._heads = heads
        self._head_weights = head_weights

    @property
    def name(self) -> str:
        """The joined names of the heads."""
        return "_".join(name for name, _ in self._named())

    @property
    def logits_dimension(self) -> int:
        """The sum of the heads' dimensions."""
        return sum(head.logits_dimension for head in self._heads)

    @property
    def loss_reduction(self) -> str:
        """The common loss reduction of the heads.

        Raises:
            ValueError: If the heads have different ones.
        """
        reductions = [head.loss_reduction for head in self._heads]
        if len(set(reductions)) > 1:
            raise ValueError(
                f"The loss_reduction must be the same for different heads. Given: {reductions}."
            )
        return reductions[0]

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Returns the weighted sum of the heads' losses; see `Head.loss`."""
        of_heads = self._losses(labels, logits, features, mode)
        return self._merged(list(of_heads.values()), regularization_losses)

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, tf.Tensor]:
        """Returns predictions by (head's name, prediction key); see `Head.predictions`."""
        by_head = self._split_logits(logits)
        with v1.name_scope(None, "merge_pred"):
            return {
                (name, key): prediction
                for name, head in self._named()
                for key, prediction in head.predictions(logits=by_head[name]).items()
                if not keys or key in keys or (name, key) in keys
            }

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """Makes metrics of the heads' losses; `update_metrics` adds the heads' own metrics."""
        from tf_keras.metrics import Mean

        keys = [_loss_key(name) for name, _ in self._named()]
        if regularization_losses:
            keys.append(self._summary_key(MetricKeys.LOSS_REGULARIZATION))
        with v1.name_scope(None, "merge_eval"):
            return {key: Mean(name=key) for key in keys}

    # Like the original's, these heads take no mode.
    def update_metrics(  # type: ignore[override]
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """Updates metrics with a batch and adds the heads' own; see `Head.update_metrics`."""
        by_head = self._split_logits(logits)
        regularization = _losses.total_regularization(regularization_losses)
        if regularization is not None:
            key = self._summary_key(MetricKeys.LOSS_REGULARIZATION)
            eval_metrics[key].update_state(regularization)
        for name, loss in self._losses(labels, by_head, features).items():
            eval_metrics[_loss_key(name)].update_state(loss)
        for name, head in self._named():
            # Continues the metrics of earlier batches. The original makes new ones for each batch, so an eager loop
            # ends with the values of its last batch.
            of_head = {key: eval_metrics.get(key, new) for key, new in head.metrics().items()}
            eval_metrics.update(
                head.update_metrics(
                    eval_metrics=of_head,
                    features=features,
                    logits=by_head[name],
                    labels=labels[name],
                )
            )
        return eval_metrics

    def _summaries(
        self,
        loss: tf.Tensor,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> dict[str, tf.Tensor]:
        """Returns the heads' losses, the total and its regularization."""
        of_heads = self._losses(labels, logits, features, ModeKeys.TRAIN)
        regularization = _losses.total_regularization(regularization_losses)
        written = {_loss_key(name): value for name, value in of_heads.items()}
        written[MetricKeys.LOSS] = loss
        if regularization is not None:
            written[MetricKeys.LOSS_REGULARIZATION] = regularization
        return written

    def _export_outputs(
        self, predictions: dict[Any, tf.Tensor], features: Any, logits: Any
    ) -> dict[str, ExportOutput]:
        """Returns the heads' signatures, and a predict signature of all predictions."""
        del predictions
        exported: dict[str, ExportOutput] = {}
        merged = {}
        for name, head in self._named():
            outputs = head.create_estimator_spec(features, ModeKeys.PREDICT, logits[name])
            # Heads "fare" and "tip" give the signatures fare, fare/predict, ..., tip, tip/predict,
            # ...; then predict, of all predictions, and the default, which is that of "fare".
            for key, output in (outputs.export_outputs or {}).items():
                exported[name if key == SignatureKeys.DEFAULT else f"{name}/{key}"] = output
                if key == SignatureKeys.PREDICT and isinstance(output, PredictOutput):
                    merged.update({f"{name}/{k}": v for k, v in output.outputs.items()})
        first, _ = next(self._named())
        exported[SignatureKeys.DEFAULT] = exported[first]
        exported[SignatureKeys.PREDICT] = PredictOutput(merged)
        return exported

    def _features_of_metrics(self, features: Any) -> Any:
        needed: dict[str, Any] = {}
        for head in self._heads:
            of_head = head._features_of_metrics(features)
            if not isinstance(of_head, Mapping):
                return features
            needed.update(of_head)
        return needed

    def _losses(
        self, labels: Any, logits: Any, features: Mapping[str, Any] | None, mode: str | None = None
    ) -> dict[str, tf.Tensor]:
        by_head = self._split_logits(logits)
        self._check_labels(labels)
        return {
            name: head.loss(logits=by_head[name], labels=labels[name], features=features, mode=mode)
            for name, head in self._named()
        }

    def _merged(
        self, of_heads: Sequence[tf.Tensor], regularization_losses: Sequence[tf.Tensor] | None
    ) -> tf.Tensor:
        with v1.name_scope(None, "merge_losses"):
            weights = self._head_weights or (1.0,) * len(of_heads)
            loss = tf.add_n([loss * weight for loss, weight in zip(of_heads, weights)])
            regularization = _losses.total_regularization(regularization_losses)
            return loss if regularization is None else loss + regularization

    def _named(self) -> Iterator[tuple[str, Head]]:
        return ((str(head.name), head) for head in self._heads)

    def _split_logits(self, logits: Any) -> dict[str, Any]:
        if isinstance(logits, Mapping):
            self._check_all_heads_are_in("logits", logits)
            return dict(logits)
        with v1.name_scope(None, "split_logits"):
            logits = tf.convert_to_tensor(logits)
            sizes = [head.logits_dimension for head in self._heads]
            if logits.shape.rank and logits.shape[-1] not in (None, sum(sizes)):
                raise ValueError(
                    f"Could not split logits of shape {logits.shape.as_list()} among the heads "
                    f"with individual logits dimensions: {sizes}. The last dimension of the "
                    f"logits tensor should equal {sum(sizes)} but is {logits.shape[-1]}."
                )
            parts = tf.split(logits, sizes, axis=-1)
            return {name: part for (name, _), part in zip(self._named(), parts)}

    def _check_labels(self, labels: Any) -> None:
        check_labels_given(labels)
        if not isinstance(labels, Mapping):
            raise ValueError(
                f"labels must be a dict. Given: {labels}. Give a dict of head's name to labels."
            )
        self._check_all_heads_are_in("labels", labels)

    def _check_all_heads_are_in(self, what: str, given: Mapping[str, Any]) -> None:
        missing = [name for name, _ in self._named() if name not in given]
        if missing:
            raise ValueError(
                f"{what} has missing values for head(s): {missing}. Given: {sorted(given)}."
            )


def _loss_key(name: str) -> str:
    return f"{MetricKeys.LOSS}/{name}"

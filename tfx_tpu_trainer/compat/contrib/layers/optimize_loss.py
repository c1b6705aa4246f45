"""Makes a train op in one call; writes summaries of collected tensors."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.training.loops import changed

v1 = tf.compat.v1
_Gradients = list[tuple[Any, tf.Variable]]

OPTIMIZER_CLS_NAMES: Final[dict[str, Callable[..., Any]]] = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "Momentum": lambda learning_rate: v1.train.MomentumOptimizer(learning_rate, momentum=0.9),
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}
"""Optimizer's name in `optimize_loss` -> its class, or a function of the learning rate."""

OPTIMIZER_SUMMARIES: Final = [
    "learning_rate",
    "loss",
    "gradients",
    "gradient_norm",
    "global_gradient_norm",
]
"""The names of the summaries that `optimize_loss` can write."""


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Callable[[Any, Any], Any] | None = None,
    update_ops: Any = None,
    variables: Sequence[tf.Variable] | None = None,
    name: str | None = None,
    summaries: Sequence[str] | None = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> tf.Tensor:
    """Makes a train op, which clips and scales gradients and applies them with an optimizer.

    Behaves like `tf.contrib.layers.optimize_loss` in TensorFlow 1.15: the learning rate is the
    variable `OptimizeLoss/learning_rate`. On cores pass an optimizer that `CrossShardOptimizer`
    wraps; no summaries are written there.

    Args:
        loss: A scalar.
        global_step: The step to count; `None` for the graph's, if it has one.
        learning_rate: A float or a scalar; `None` if the optimizer has its own.
        optimizer: A key of `OPTIMIZER_CLS_NAMES`, an optimizer, its class, or a function of the
            learning rate (without arguments, if that is `None`) that makes one.
        gradient_noise_scale: The scale of normal noise on gradients. Defaults to `None`, none.
        gradient_multipliers: Factors of gradients, by variable or its name with `:0`. Defaults to
            `None`.
        clip_gradients: The greatest global norm, a float; or a function that takes pairs of gradient and variable and
            returns clipped ones. Defaults to `None`.
        learning_rate_decay_fn: A function of learning rate and step that makes another rate.
            Defaults to `None`.
        update_ops: Ops that run before the loss. Defaults to `None`, those in
            `GraphKeys.UPDATE_OPS`.
        variables: The variables to train. Defaults to `None`, all trainable variables.
        name: The variable scope. Defaults to `None`, `OptimizeLoss`.
        summaries: Which of `OPTIMIZER_SUMMARIES` to write. Defaults to `None`: loss, learning rate
            and global norm.
        colocate_gradients_with_ops: Whether gradients are computed on their ops' devices. Defaults to `False`.
        increment_global_step: Whether to count the step. Defaults to `True`.

    Returns:
        The loss, after the update.

    Raises:
        ValueError: If an argument has an invalid value, or a step is needed and there is none.
    """
    loss = tf.convert_to_tensor(loss)
    if loss.shape.rank not in (0, None):
        raise ValueError(f"loss must be a scalar; got the shape {loss.shape}.")
    step = v1.train.get_global_step() if global_step is None else global_step
    if global_step is not None:
        v1.train.assert_global_step(global_step)
    wanted = ["loss", "learning_rate", "global_gradient_norm"] if summaries is None else summaries
    for each in wanted:
        if each not in OPTIMIZER_SUMMARIES:
            raise ValueError(
                f"summaries are some of {', '.join(OPTIMIZER_SUMMARIES)}; got {each!r}."
            )
    with v1.variable_scope(name, "OptimizeLoss", [loss, step]):
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
        if updates:
            with tf.control_dependencies(list(dict.fromkeys(updates))):
                loss = tf.identity(loss)
        rate = None if learning_rate is None else _rate(learning_rate)
        if rate is not None and learning_rate_decay_fn is not None:
            if step is None:
                raise ValueError(
                    "learning_rate_decay_fn needs a global step, but global_step is None."
                )
            rate = learning_rate_decay_fn(rate, step)
            if "learning_rate" in wanted:
                v1.summary.scalar("learning_rate", rate)
        made = _optimizer(optimizer, rate)
        gradients = made.compute_gradients(
            loss,
            v1.trainable_variables() if variables is None else variables,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gradient_noise_scale is not None:
            gradients = _noisy(gradients, gradient_noise_scale)
        if gradient_multipliers is not None:
            gradients = _multiplied(gradients, gradient_multipliers)
        norms = "global_gradient_norm" in wanted or "gradient_norm" in wanted
        if norms:
            _summarize_norm("gradient_norm", gradients)
        if isinstance(clip_gradients, float):
            values, trained = zip(*gradients)
            gradients = list(zip(tf.clip_by_global_norm(values, clip_gradients)[0], trained))
        elif callable(clip_gradients):
            gradients = clip_gradients(gradients)
        elif clip_gradients is not None:
            raise ValueError(
                f"clip_gradients must be a float or a function; got {clip_gradients!r}."
            )
        if "loss" in wanted:
            v1.summary.scalar("loss", loss)
        _summarize_each(gradients, wanted)
        if clip_gradients is not None and norms:
            _summarize_norm("clipped_gradient_norm", gradients)
        update = made.apply_gradients(
            gradients, global_step=step if increment_global_step else None, name="train"
        )
        # The value is the loss before the update; only the op comes after it.
        with tf.control_dependencies([update]):
            return tf.identity(loss)


def _rate(learning_rate: Any) -> Any:
    if isinstance(learning_rate, (tf.Tensor, tf.Variable)) and learning_rate.shape.rank == 0:
        return learning_rate
    if not isinstance(learning_rate, float) or learning_rate < 0.0:
        raise ValueError(
            f"learning_rate must be a scalar tensor or a float of 0 or more; got {learning_rate!r}."
        )
    return v1.get_variable(
        "learning_rate", [], trainable=False, initializer=v1.constant_initializer(learning_rate)
    )


def _optimizer(optimizer: Any, rate: Any) -> Any:
    if isinstance(optimizer, v1.train.Optimizer):
        return optimizer
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZER_CLS_NAMES:
            names = ", ".join(OPTIMIZER_CLS_NAMES)
            raise ValueError(f"An optimizer's name must be one of {names}; got {optimizer!r}.")
        optimizer = OPTIMIZER_CLS_NAMES[optimizer]
        needs_rate = True
    else:
        needs_rate = isinstance(optimizer, type) and issubclass(optimizer, v1.train.Optimizer)
    if needs_rate and rate is None:
        raise ValueError(f"The optimizer {optimizer!r} needs a learning_rate; got None.")
    if not callable(optimizer):
        raise ValueError(
            f"optimizer must be a name, an optimizer, its class or a function that makes one; got {optimizer!r}."
        )
    made = (
        optimizer(learning_rate=rate)
        if needs_rate
        else optimizer(*([] if rate is None else [rate]))
    )
    if not isinstance(made, v1.train.Optimizer):
        raise ValueError(
            f"The function given as optimizer must return a TF 1 optimizer; it returned {made!r}."
        )
    return made


def _noisy(gradients: _Gradients, scale: float) -> _Gradients:
    noisy: _Gradients = []
    for gradient, variable in gradients:
        if gradient is not None:
            shape = (
                gradient.dense_shape if isinstance(gradient, tf.IndexedSlices) else gradient.shape
            )
            gradient = gradient + v1.truncated_normal(shape) * scale
        noisy.append((gradient, variable))
    return noisy


def _multiplied(gradients: _Gradients, factors: Mapping[Any, Any]) -> _Gradients:
    by_name = {
        each if isinstance(each, str) else each.name: factor for each, factor in factors.items()
    }
    return [(_times(each, by_name.get(variable.name)), variable) for each, variable in gradients]


def _times(gradient: Any, factor: Any) -> Any:
    return gradient if factor is None else changed(gradient, lambda values: values * factor)


def _summarize_norm(name: str, gradients: _Gradients) -> None:
    v1.summary.scalar(f"global_norm/{name}", tf.linalg.global_norm([each for each, _ in gradients]))


def _summarize_each(gradients: _Gradients, wanted: Sequence[str]) -> None:
    for gradient, variable in gradients:
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        if values is None:
            continue
        name = variable.name.replace(":", "_")
        if "gradients" in wanted:
            v1.summary.histogram(f"gradients/{name}", values)
        if "gradient_norm" in wanted:
            v1.summary.scalar(f"gradient_norm/{name}", tf.linalg.global_norm([values]))


def summarize_tensor(tensor: Any, tag: str | None = None) -> Any:
    """Writes a scalar, or the histogram of another tensor.

    Args:
        tensor: The tensor.
        tag: The summary's name. Defaults to `None`, the tensor's with `_summary`.

    Returns:
        The summary op; `None` for strings and booleans.
    """
    if tensor.dtype.base_dtype in (tf.string, tf.bool):
        return None
    tag = tag or f"{tensor.op.name}_summary"
    kind = v1.summary.scalar if tensor.shape.rank == 0 else v1.summary.histogram
    return kind(tag, tensor)


def summarize_collection(
    collection: str,
    name_filter: str | None = None,
    summarizer: Callable[[Any], Any] = summarize_tensor,
) -> list[Any]:
    """Writes a summary of each tensor in a collection.

    Args:
        collection: The collection.
        name_filter: A regular expression for the beginning of the names. Defaults to `None`, all.
        summarizer: Writes one summary. Defaults to `summarize_tensor`.

    Returns:
        The summarizer's results.
    """
    found = v1.get_collection(collection)
    wanted = [each for each in found if name_filter is None or re.match(name_filter, each.op.name)]
    return [summarizer(each) for each in wanted]

"""Provides the optimizers of `tf.contrib.opt`: decoupled weight decay and moving averages."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_GATE_OP = v1.train.Optimizer.GATE_OP

__all__ = [
    "AdamWOptimizer",
    "DecoupledWeightDecayExtension",
    "MovingAverageOptimizer",
    "extend_with_decoupled_weight_decay",
]


class DecoupledWeightDecayExtension:
    """Makes an optimizer decay variables before each update; to be inherited before the optimizer's class.

    A variable becomes `variable - weight_decay * variable` with each step; the learning rate does
    not affect it. Behaves like `tf.contrib.opt` in TensorFlow 1.15.
    """

    def __init__(self, weight_decay: Any, **kwargs: Any) -> None:
        self._decayed: set[int] | None = None
        self._weight_decay = weight_decay
        super().__init__(**kwargs)

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = _GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
        decay_var_list: Iterable[tf.Variable] | None = None,
    ) -> Any:
        """Trains, decaying only some variables."""
        self._decay_only(decay_var_list)
        gradients = self.compute_gradients(  # type: ignore[attr-defined]
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        return super().apply_gradients(  # type: ignore[misc]
            gradients, global_step=global_step, name=name
        )

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Iterable[tf.Variable] | None = None,
    ) -> Any:
        """Updates variables, decaying only some of them."""
        self._decay_only(decay_var_list)
        return super().apply_gradients(  # type: ignore[misc]
            grads_and_vars, global_step=global_step, name=name
        )

    def _decay_only(self, variables: Iterable[tf.Variable] | None) -> None:
        listed = list(variables or ())
        self._decayed = {id(each) for each in listed} if listed else None

    # A variable is decayed after its gradient has been computed from the old value.
    def _after_decay(self, variable: tf.Variable, gradient: Any, rows: Any = None) -> Any:
        """Decays a variable, or some of its rows; returns a context whose ops run afterwards."""
        if self._decayed is not None and id(variable) not in self._decayed:
            return contextlib.nullcontext()
        with tf.control_dependencies([gradient]):
            decay = self._weight_decay() if callable(self._weight_decay) else self._weight_decay
            rate = tf.convert_to_tensor(decay, name="weight_decay")
            rate = tf.cast(rate, variable.dtype.base_dtype)
            if rows is None:
                locking = self._use_locking  # type: ignore[attr-defined]
                decayed = variable.assign_sub(rate * variable, locking)
            else:
                step = -rate * tf.gather(variable, rows)
                decayed = variable.scatter_add(tf.IndexedSlices(step, rows))
        return tf.control_dependencies([decayed])

    # TF 1's optimizers implement these methods.
    def _apply_dense(self, grad: Any, var: Any) -> Any:
        with self._after_decay(var, grad):
            return super()._apply_dense(grad, var)  # type: ignore[misc]

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        with self._after_decay(var, grad):
            return super()._resource_apply_dense(grad, var)  # type: ignore[misc]

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        with self._after_decay(var, grad.values, grad.indices):
            return super()._apply_sparse(grad, var)  # type: ignore[misc]

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        with self._after_decay(var, grad, indices):
            return super()._resource_apply_sparse(grad, var, indices)  # type: ignore[misc]


def extend_with_decoupled_weight_decay(base_optimizer: Any) -> Callable[..., Any]:
    """Returns a subclass of an optimizer class that decays weights."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        """The optimizer, with decay."""

        def __init__(self, weight_decay: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(weight_decay, *args, **kwargs)

    return OptimizerWithDecoupledWeightDecay


class AdamWOptimizer(DecoupledWeightDecayExtension, v1.train.AdamOptimizer):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(
            weight_decay,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            use_locking=use_locking,
            name=name,
        )


class MovingAverageOptimizer(v1.train.Optimizer):
    """Wraps an optimizer to keep moving averages of the variables, and a saver that saves the averages.

    Behaves like `tf.contrib.opt` in TensorFlow 1.15.
    """

    def __init__(
        self,
        opt: Any,
        average_decay: float = 0.9999,
        num_updates: Any = None,
        sequential_update: bool = True,
    ) -> None:
        self._optimizer, self._sequential = opt, sequential_update
        self._average = tf.train.ExponentialMovingAverage(average_decay, num_updates)
        self._swapped: dict[str, tf.Variable] | None = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the optimizer's gradients."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Updates variables and their averages."""
        pairs = list(grads_and_vars)
        update = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        with tf.control_dependencies([update] if self._sequential else []):
            averaged = self._average.apply(variables)
        self._swapped = {}
        for variable in variables:
            average = self._average.average(variable)
            self._swapped[variable.op.name] = average
            self._swapped[average.op.name] = variable
        return tf.group(update, averaged, name="train_with_avg")

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> v1.train.Saver:
        """Makes a saver that saves averages under the variables' names, and vice versa."""
        if self._swapped is None:
            raise RuntimeError("swapping_saver() comes after minimize() or apply_gradients().")
        listed = v1.global_variables() if var_list is None else var_list
        named = (
            dict(listed) if isinstance(listed, dict) else {each.op.name: each for each in listed}
        )
        saved = {}
        for label, variable in named.items():
            other = self._swapped.get(variable.op.name, variable)
            if not any(each is other for each in named.values()):
                raise ValueError(
                    f"{other.op.name} should be saved as {label}, but is not one of the variables "
                    "to save."
                )
            saved[label] = other
        return v1.train.Saver(saved, name=name, **kwargs)

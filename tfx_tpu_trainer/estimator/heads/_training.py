"""Makes the op of a training step from a loss and an optimizer, instance, name or function."""

import concurrent.futures
import copy
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._modes import is_on_cores
from tfx_tpu_trainer.estimator.heads import _losses

v1 = tf.compat.v1

_SUMMED: Final = (_losses.SUM, v1.losses.Reduction.SUM)


def minimize(
    optimizer: Any,
    loss: tf.Tensor,
    variables: Sequence[tf.Variable] | None = None,
    *,
    global_step: tf.Variable | None,
    loss_reduction: str,
) -> tf.Operation:
    """Returns the op that minimizes a loss."""
    if isinstance(optimizer, v1.train.Optimizer):
        chosen = _for_cores(optimizer, loss_reduction) if is_on_cores() else optimizer
        if variables is None:
            return chosen.minimize(loss, global_step=global_step)
        return chosen.minimize(loss, global_step=global_step, var_list=list(variables))
    trained = _check_variables(variables)
    has_own_count = global_step is not None and _has_own_count(optimizer, global_step)
    if is_on_cores():
        if makes_its_updates(optimizer):
            raise ValueError(
                f"The optimizer {type(optimizer).__name__} has its own get_updates, whose "
                "gradients can't be combined on TPU cores. Give a train_op_fn, or a "
                "CrossShardOptimizer."
            )
        step = _for_cores(KerasOptimizer(optimizer), loss_reduction).minimize(
            loss, var_list=trained
        )
    else:
        # `get_updates` returns a list of one op, which applies all gradients and counts the step.
        step = optimizer.get_updates(loss, trained)[0]
    if not has_own_count:
        return step
    with tf.control_dependencies([step]):
        return v1.assign_add(global_step, 1).op


# A Keras optimizer counts its steps in `iterations`, a variable that it makes at the first read. As in
# the original, the global step becomes that variable, so a checkpoint has one count and Adam's
# bias correction continues after a restart. An optimizer that already has its own, because a program
# read `iterations`, keeps it, and the global step is raised separately.
def _has_own_count(optimizer: Any, global_step: tf.Variable) -> bool:
    """Makes the global step an optimizer's count of steps; returns whether it keeps another one."""
    try:
        optimizer.iterations = global_step
    except RuntimeError:
        return optimizer.iterations is not global_step
    except AttributeError:
        # Keras 3's can't be set, so its `get_updates` must raise the global step itself.
        return False
    return False


def _check_variables(variables: Any) -> list[tf.Variable]:
    """Returns the variables that a Keras optimizer trains, as a list."""
    if variables is None:
        raise ValueError(
            "trainable_variables cannot be None. Given None; a Keras optimizer needs them, for "
            "instance tf.compat.v1.trainable_variables()."
        )
    if not isinstance(variables, (list, tuple)):
        raise ValueError(
            f"trainable_variables should be a list or a tuple. Given type: {type(variables)}."
        )
    return list(variables)


def check_variables_of_v1(optimizer: v1.train.Optimizer, variables: Any) -> None:
    """Checks a v1 optimizer's variables; the original's message for a v1 optimizer comes first."""
    if variables is not None and not (isinstance(variables, (list, tuple)) and variables):
        raise ValueError(
            "The given optimizer is not a tf.keras.optimizers.Optimizer instance. Received "
            f"optimizer of type {type(optimizer)}, which can train as well, but "
            "trainable_variables should be a list or a tuple with variables in it. Given: "
            f"{variables!r}. Leave it out to train all trainable variables."
        )


def check_one_is_given(optimizer: Any, train_op_fn: Any) -> Any:
    """Checks that exactly one of the two is given, and returns it."""
    if optimizer is not None and train_op_fn is not None:
        raise ValueError(
            "train_op_fn and optimizer cannot both be set: "
            f"train_op_fn={train_op_fn!r}, optimizer={optimizer!r}."
        )
    if optimizer is None and train_op_fn is None:
        raise ValueError("train_op_fn and optimizer cannot both be None. Give one for training.")
    return train_op_fn if optimizer is None else optimizer


def _for_cores(optimizer: v1.train.Optimizer, loss_reduction: str) -> v1.train.Optimizer:
    if isinstance(optimizer, v1.tpu.CrossShardOptimizer):
        return optimizer
    reduction = v1.losses.Reduction.SUM if loss_reduction in _SUMMED else v1.losses.Reduction.MEAN
    return v1.tpu.CrossShardOptimizer(optimizer, reduction=reduction)


def per_replica(loss: tf.Tensor, loss_reduction: str) -> tf.Tensor:
    """Returns the loss for a Keras optimizer, which sums gradients over a strategy's replicas."""
    # On cores the loss stays unchanged: a CrossShardOptimizer divides the gradients.
    replicas = 1 if is_on_cores() else tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1 and loss_reduction == _losses.SUM_OVER_BATCH_SIZE:
        return loss / replicas
    return loss


# Name -> class, of tf_keras.optimizers.legacy and of tf.compat.v1.train.
_KERAS_CLASSES: Final = {
    "Adagrad": "Adagrad",
    "Adam": "Adam",
    "Ftrl": "Ftrl",
    "RMSProp": "RMSprop",
    "SGD": "SGD",
}
_V1_CLASSES: Final = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}

# Settings of today's Keras optimizers that those for graphs lack.
_ONLY_EAGER: Final = ("weight_decay", "use_ema", "loss_scale_factor", "gradient_accumulation_steps")
_NO_PART_OF_THE_MATHS: Final = (
    *_ONLY_EAGER,
    "ema_momentum",
    "ema_overwrite_frequency",
    "jit_compile",
    "is_legacy_optimizer",
)


def optimizer_instance(
    optimizer: Any,
    learning_rate: Any = None,
    *,
    word: str = "object",
    copies: dict[Any, Any] | None = None,
) -> Any:
    """Returns an optimizer for the heads of `tf.estimator`."""
    from tf_keras.optimizers import legacy

    if isinstance(optimizer, str):
        _check_name(optimizer)
        given = {} if learning_rate is None else {"learning_rate": learning_rate}
        return getattr(legacy, _KERAS_CLASSES[optimizer])(**given)
    if isinstance(optimizer, v1.train.Optimizer):
        return optimizer
    if isinstance(optimizer, legacy.Optimizer) or _is_todays_keras(optimizer):
        copies = {} if copies is None else copies
        if optimizer not in copies:
            copies[optimizer] = _own(optimizer)
        return copies[optimizer]
    if callable(optimizer) and not isinstance(optimizer, type):
        made = optimizer()
        if not callable(made) and not isinstance(made, str):
            return optimizer_instance(made, word=word, copies=copies)
        optimizer = made
    raise ValueError(
        f"The given {word} is not a tf.keras.optimizers.Optimizer instance. Given: {optimizer!r}, "
        f"a {type(optimizer)}. Give an optimizer, a function without arguments that returns one, "
        f"or one of the names {sorted(_KERAS_CLASSES)}."
    )


def _own(optimizer: Any) -> Any:
    """Makes the model's own copy of a Keras optimizer, which works in the default graph."""
    from tf_keras.optimizers import legacy

    if isinstance(optimizer, legacy.Optimizer):
        return _of_this_graph(optimizer)
    return copy.copy(optimizer) if makes_its_updates(optimizer) else _as_legacy(optimizer)


def makes_its_updates(optimizer: Any) -> bool:
    """Returns whether an optimizer's class has its own `get_updates`, which heads call for a step."""
    from tf_keras.optimizers import legacy

    own = getattr(type(optimizer), "get_updates", None)
    return own is not None and own is not legacy.Optimizer.get_updates


def v1_optimizer_instance(optimizer: Any, learning_rate: Any = None) -> v1.train.Optimizer:
    """Returns an optimizer for the estimators of `tf.compat.v1.estimator`."""
    if isinstance(optimizer, str):
        _check_name(optimizer)
        if not learning_rate:
            raise ValueError(
                f"learning_rate must be specified when opt is string: {optimizer!r} was given "
                f"with {learning_rate!r}."
            )
        return _V1_CLASSES[optimizer](learning_rate=learning_rate)
    if not isinstance(optimizer, v1.train.Optimizer) and callable(optimizer):
        optimizer = optimizer()
    if not isinstance(optimizer, v1.train.Optimizer):
        raise ValueError(
            f"The given object is not an Optimizer instance. Given: {optimizer!r}. Estimators of "
            "tf.compat.v1.estimator take tf.compat.v1.train optimizers; those of tf.estimator take "
            "Keras optimizers as well."
        )
    return optimizer


class KerasOptimizer(v1.train.Optimizer):
    """A legacy Keras optimizer as a v1 one, to be wrapped; it counts steps in its own `iterations`."""

    def __init__(self, optimizer: Any) -> None:
        """Wraps an optimizer."""
        super().__init__(use_locking=False, name=type(optimizer).__name__)
        self._optimizer = optimizer

    def compute_gradients(
        self, loss: tf.Tensor, var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Any, tf.Variable]]:
        """Returns pairs of gradient and variable."""
        del kwargs
        variables = v1.trainable_variables() if var_list is None else list(var_list)
        return list(zip(self._optimizer.get_gradients(loss, variables), variables))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Returns the op that changes the variables."""
        del global_step
        return self._optimizer.apply_gradients(list(grads_and_vars), name=name)


def _check_name(name: str) -> None:
    if name not in _KERAS_CLASSES:
        raise ValueError(
            f"Unsupported optimizer name: {name}. Supported names are: "
            f"{tuple(sorted(_KERAS_CLASSES))}."
        )


def _of_this_graph(optimizer: Any) -> Any:
    """Returns an optimizer without variables, or one whose variables are of the default graph."""
    from tf_keras.optimizers import legacy

    # Not the subclass's `weights`, which may read `iterations`, and so make the variable that the global
    # step must replace.
    variables = legacy.Optimizer.weights.fget(optimizer)
    if not variables:
        fresh = copy.copy(optimizer)
        # Containers that building fills, such as the dictionary of slots, must not be shared.
        for name, value in vars(optimizer).items():
            if type(value) in (dict, list):
                vars(fresh)[name] = copy.copy(value)
        return fresh
    graph = v1.get_default_graph()
    if all(getattr(variable, "graph", None) is graph for variable in variables):
        return optimizer
    raise ValueError(
        f"The optimizer {type(optimizer).__name__} already has variables, created outside this "
        "call of model_fn. Give a function that creates it: optimizer=lambda: ..."
    )


def _is_todays_keras(optimizer: Any) -> bool:
    """Returns whether an optimizer is of Keras 3, or of Keras 2.11 and later."""
    for name in ("keras", "tf_keras"):
        optimizers = getattr(sys.modules.get(name), "optimizers", None)
        if optimizers is not None and isinstance(optimizer, optimizers.Optimizer):
            return True
    return False


def _as_legacy(optimizer: Any) -> Any:
    """Makes the legacy optimizer with the same settings, which works in a graph."""
    from tf_keras.optimizers import legacy

    name = type(optimizer).__name__
    cls = getattr(legacy, name, None)
    if cls is None:
        raise ValueError(
            f"Keras optimizer {name} can't be used in a graph, and tf_keras.optimizers.legacy has "
            "no optimizer of this name. Use one of those that it has, or a "
            "tf.compat.v1.train.Optimizer."
        )
    settings = _settings(optimizer)
    refused = {key: settings[key] for key in _ONLY_EAGER if settings.get(key)}
    if refused:
        raise ValueError(
            f"Keras optimizer {name} can't be used in a graph with {refused}: its legacy form "
            f"tf_keras.optimizers.legacy.{name} does not know these settings. Leave them out."
        )
    known = {
        key: value
        for key, value in settings.items()
        if key not in _NO_PART_OF_THE_MATHS and value is not None
    }
    rate = known.get("learning_rate")
    if isinstance(rate, dict):
        # A schedule, whose config today has `module` and `registered_name`, unlike legacy ones.
        known["learning_rate"] = {key: rate[key] for key in ("class_name", "config")}
    return cls.from_config(known)


def _settings(optimizer: Any) -> dict[str, Any]:
    # The learning rate is an eager variable, which can't be read inside the default graph; another
    # thread has none.
    with concurrent.futures.ThreadPoolExecutor(1) as outside:
        try:
            return outside.submit(optimizer.get_config).result()
        except Exception as error:
            name = type(optimizer).__name__
            raise ValueError(
                f"Keras optimizer {name} was created inside a graph, where only legacy optimizers "
                "work. Please set your optimizer as an instance of "
                f"`tf.keras.optimizers.legacy.{name}`, or create it outside model_fn."
            ) from error

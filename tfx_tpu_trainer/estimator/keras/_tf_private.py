"""The private names of TensorFlow and Keras that Keras models in a graph need.

| name | why | if it goes away |
|---|---|---|
| `tf.__internal__.eager_context.eager_mode` | a program may have switched eager execution off, which a new thread inherits | reject such programs |
| `_keras_mask` of an output | the mask that losses and metrics weigh rows with; Keras has no public name for it | leave masks out of metrics on cores |
| `_keras_logits` of an output | the logits that crossentropies compute with in the output's place; no public name | give metrics the probabilities |
| `_v1_compile_was_called` of a Keras 2 model | only a model that was made in a graph has it | reject all models of symbolic variables |
| `_get_compile_args` of a model made in a graph | its compile arguments; no public name | reject such models |
| `_manual_input_spec` of a functional Keras 2 model | what it checks inputs by before its layers do; set by its public name, checkpoints and SavedModels would have it as a part of the model | exports take inputs of the model's own rank only |
| `_v1` at the end of a Keras 2 module's name | its classes are those of graphs | exchange the classes' bases without need |
| `FuncGraph.control_outputs`, `FuncGraph.variables` | what a traced function changes and reads | find both among the graph's operations |
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras import _tf_private


def eager_mode() -> contextlib.AbstractContextManager[None]:
    """Makes this thread execute eagerly."""
    return tf.__internal__.eager_context.eager_mode()


def mask_of(output: Any) -> tf.Tensor | None:
    """Returns the mask that a Keras layer put on its output."""
    return getattr(output, "_keras_mask", None)


def put_mask(output: Any, mask: tf.Tensor) -> None:
    """Puts a mask on a tensor, as a Keras layer does."""
    output._keras_mask = mask


def logits_of(output: Any) -> tf.Tensor | None:
    """Returns the logits that a Keras activation stored on its output."""
    return getattr(output, "_keras_logits", None)


def put_logits(output: Any, logits: tf.Tensor) -> None:
    """Stores logits on a tensor, as a Keras activation does."""
    output._keras_logits = logits


def is_of_a_graph(model: Any) -> bool:
    """Returns whether a Keras 2 model was made in a graph, or with eager execution off."""
    return "_v1_compile_was_called" in vars(model)


def compile_arguments(model: Any) -> dict[str, Any]:
    """Returns the compile arguments of a model of a graph, except the optimizer."""
    return dict(model._get_compile_args())


@contextlib.contextmanager
def inputs_of_any_shape(model: Any) -> Iterator[None]:
    """Lets the layers of a functional Keras 2 model check shapes instead of the model."""
    parts, name = vars(model), "_manual_input_spec"
    own = {name: parts[name]} if name in parts else {}
    parts[name] = None
    try:
        yield
    finally:
        parts.pop(name, None)
        parts.update(own)


def is_class_of_graphs(base: type) -> bool:
    """Returns whether a class of Keras 2 is the one for graphs."""
    return base.__module__.endswith("_v1") and base.__module__.startswith("tf_keras.")


def updates_of(graph: Any) -> Sequence[tf.Operation]:
    """Returns the ops with the effects of a traced function."""
    return graph.control_outputs


def variables_of(graph: Any) -> Sequence[tf.Variable]:
    """Returns the variables that a traced function uses."""
    return graph.variables


_Result = TypeVar("_Result")


def eagerly(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Calls a function eagerly, also from a graph or with eager execution off.

    It runs in another thread, which has no default graph, no `tf.distribute` strategy and no scope.
    """

    def call() -> _Result:
        with _tf_private.eager_mode():
            return function(*arguments)

    with concurrent.futures.ThreadPoolExecutor(1) as outside:
        return outside.submit(call).result()

"""Traces metric_fn and host_call's function once, and copies them to where their tensors are.

A function that captures a tensor of model_fn works on one host, where everything is in one graph. With several cores,
each has its own tensor, and the function would read the placeholder on which the model was traced, so it is
rejected.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.source_lines import source_line
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate

v1 = tf.compat.v1

_V1_SUMMARIES = frozenset(
    {
        "ScalarSummary",
        "HistogramSummary",
        "ImageSummary",
        "AudioSummary",
        "TensorSummary",
        "TensorSummaryV2",
        "MergeSummary",
    }
)


class TracedHostFunction:
    """A host function called on placeholders, at the top level of the graph."""

    # Its variables and summary writers are made there, once; a loop copies only its ops.

    def __init__(
        self, host_function: HostFunction, *, cores: int, broadcast: bool, full: bool = True
    ) -> None:
        self.tensors = tf.nest.flatten(host_function.tensors)
        self._gathered_from = 1 if broadcast else cores
        name = host_function.name
        if not broadcast:
            for tensor in self.tensors:
                _check_has_batch_axis(name, tensor)
        self._placeholders = [
            v1.placeholder(tensor.dtype, _gathered_shape(tensor, self._gathered_from, full))
            for tensor in self.tensors
        ]
        graph = v1.get_default_graph()
        known = len(graph.get_operations())
        self.result = HostFunction(
            name,
            host_function.function,
            tf.nest.pack_sequence_as(host_function.tensors, self._placeholders),
        )()
        for op in graph.get_operations()[known:]:
            if op.type in _V1_SUMMARIES:
                raise ValueError(
                    "Please use tf.contrib.summary instead of tf.summary inside of host_calls. "
                    "Its successor is tf.summary of TensorFlow 2, with "
                    f"tf.summary.create_file_writer: {name} creates a summary of the v1 API "
                    f"({op.name}), which can't be written from TPU cores."
                )

    def fetches(self) -> list[Fetch]:
        """Returns the fetches whose copies `gathered` joins: each tensor on all cores, in order."""
        cores = range(self._gathered_from)
        return [Fetch(core, tensor) for tensor in self.tensors for core in cores]

    def gathered(self, copies: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenates the cores' tensors along axis 0, in the order of the cores."""
        n = self._gathered_from
        parts = [copies[start : start + n] for start in range(0, len(copies), n)]
        return [part[0] if n == 1 else tf.concat(part, axis=0) for part in parts]

    def copy(
        self,
        copier: GraphCopier,
        gathered: Sequence[tf.Tensor],
        nodes: Sequence[Any],
        *,
        name: str,
        handles: Mapping[str, tf.Tensor] | None = None,
    ) -> list[Any]:
        """Copies parts of the result into the graph under construction."""
        replaced = {p.name: tensor for p, tensor in zip(self._placeholders, gathered)}
        replaced |= handles or {}
        fetches = [Fetch(0, _as_node(node)) for node in nodes]
        return copier.copy(fetches, replaced=[replaced], name=name)

    def run(
        self,
        copier: GraphCopier,
        gathered: Sequence[tf.Tensor],
        *,
        name: str,
        handles: Mapping[str, tf.Tensor] | None = None,
    ) -> tf.Operation:
        """Copies the whole result into the graph under construction, as one operation."""
        return tf.group(*self.copy(copier, gathered, self._nodes(), name=name, handles=handles))

    def fed(self, values: Sequence[np.ndarray]) -> tuple[list[Any], dict[tf.Tensor, np.ndarray]]:
        """Returns the fetches and feeds with which a session runs the function itself."""
        return self._nodes(), dict(zip(self._placeholders, values))

    def _nodes(self) -> list[Any]:
        return [node for node in tf.nest.flatten(self.result) if node is not None]


def trace_host_function(
    host_function: HostFunction | None, *, cores: int, broadcast: bool, full: bool = True
) -> TracedHostFunction | None:
    """Traces a host function; returns `None` if there is none, or it has no tensors."""
    # On TPU cores, a function without tensors is never called, since nothing from the cores starts it.
    if host_function is None or not tf.nest.flatten(host_function.tensors):
        return None
    return TracedHostFunction(host_function, cores=cores, broadcast=broadcast, full=full)


def _as_node(value: Any) -> tf.Tensor | tf.Operation:
    """Returns the node to copy: for an assignment that returns a variable, the assignment."""
    return value.op if isinstance(value, tf.Variable) else value


def _check_has_batch_axis(name: str, tensor: tf.Tensor) -> None:
    if tensor.shape.rank == 0:
        raise RuntimeError(
            "All tensors outfed from TPU should preserve batch size dimension, but got scalar "
            f"{tensor.name} in {name}: give it one with tf.reshape(tensor, [1])."
        )


def _gathered_shape(tensor: tf.Tensor, cores: int, full: bool) -> tf.TensorShape:
    if not tensor.shape.rank:
        return tensor.shape
    shape = tensor.shape.as_list()
    shape[0] = shape[0] * cores if full and shape[0] is not None else None
    return tf.TensorShape(shape)


_INPUT = "Placeholder"

# TensorFlow's description of an op whose inputs do not fit: its name and its inputs' names.
_FAILED = re.compile(r"\{\{node (\S+)\}\} = \w+\[.*?\]\(([^()]*)\)")


# How a captured tensor is found. In metric_fn = lambda labels: {"accuracy": v1.metrics.accuracy(labels, predictions)}
# `predictions` comes from model_fn, by a closure. Each core has its own, and the function runs once for all. So after
# the call every op that it has made is checked: an input is captured if it existed before, is not an argument, and
# depends on a placeholder of the trace. Tensors that depend on variables and constants only have a value on the host
# too, and may be captured.
def refuse_captured_tensors(template: ModelTemplate, *, runs_on: str) -> ModelTemplate:
    """Makes the functions of eval_metrics and host_call fail if they capture tensors of the model."""
    inputs = _names_of_inputs(template)

    def checked(function: HostFunction | None) -> HostFunction | None:
        if function is None:
            return None
        return dataclasses.replace(
            function, function=_checked(function, runs_on=runs_on, inputs=inputs)
        )

    return dataclasses.replace(
        template, eval_metrics=checked(template.eval_metrics), host_call=checked(template.host_call)
    )


def _checked(
    host_function: HostFunction, *, runs_on: str, inputs: Mapping[tf.Operation, str]
) -> Callable[..., Any]:
    name, function = host_function.name, host_function.function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        graph = v1.get_default_graph()
        known = set(graph.get_operations())
        flat = tf.nest.flatten((args, kwargs), expand_composites=True)
        given = {node.name for node in flat if _is_node(node)}

        def check(uses: Iterable[_Use]) -> None:
            made = (op for op in graph.get_operations() if op not in known)
            for use in _captures([*_uses(made), *uses], known, given):
                raise ValueError(_explain(name, use, runs_on=runs_on, inputs=inputs))

        try:
            result = function(*args, **kwargs)
        except Exception as error:
            # One core's rows do not fit those of all cores; TensorFlow's error names the op's inputs.
            check(_uses_of_failed(error, graph))
            raise
        check(_Use(node, f"as a result of {name}", None) for node in _nodes(result))
        return result

    return call


class _Use(NamedTuple):
    """A tensor or an operation that a host function uses: a description of the use, and the op that uses it."""

    used: tf.Tensor | tf.Operation
    how: str
    user: tf.Operation | None


def _uses(ops: Iterable[tf.Operation]) -> Iterator[_Use]:
    for op in ops:
        for used in (*op.inputs, *op.control_inputs):
            yield _Use(used, f"as input to {op.name!r}", op)


def _uses_of_failed(error: Exception, graph: tf.Graph) -> Iterator[_Use]:
    """Yields the inputs of an op that TensorFlow could not make, from its error."""
    for name, inputs in _FAILED.findall(str(error)):
        for given in inputs.split(", "):
            with contextlib.suppress(KeyError, ValueError):
                element = graph.as_graph_element(given.removeprefix("^"))
                yield _Use(element, f"as input to {name!r}", None)


def _captures(
    uses: Iterable[_Use], known: Collection[tf.Operation], given: Collection[str]
) -> Iterator[_Use]:
    """Yields the uses of the model's ops that depend on its inputs."""
    checked: dict[str, bool] = {}
    for use in uses:
        used = use.used
        if _op_of(used) in known and used.name not in given:
            if used.name not in checked:
                needed = upstream([used], given=given)
                checked[used.name] = any(op.type == _INPUT for op in needed)
            if checked[used.name]:
                yield use


def _nodes(result: Any) -> list[tf.Tensor | tf.Operation]:
    """Returns the nodes in a function's result, the updates of Keras metrics included."""
    leaves = tf.nest.flatten(result)
    updates = [update for leaf in leaves for update in getattr(leaf, "updates", ())]
    return [node for node in (*leaves, *updates) if _is_node(node)]


def _is_node(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.Operation))


def _op_of(node: tf.Tensor | tf.Operation) -> tf.Operation:
    return node if isinstance(node, tf.Operation) else node.op


def _explain(name: str, use: _Use, *, runs_on: str, inputs: Mapping[tf.Operation, str]) -> str:
    captured = _op_of(use.used)
    if captured.type == _INPUT:
        # Its source line would be the call of train or evaluate.
        origin = f"is model_fn's {inputs.get(captured, 'input')}"
    else:
        origin = f"was made at {source_line(captured) or 'an unknown line'}"
    line = None if use.user is None else source_line(use.user)
    used = "" if line is None else f", and is used at {line}"
    return (
        f"Cannot use {captured.name!r} {use.how} because {captured.name!r} is part of the "
        f"computation on {runs_on}: the function of {name} runs on the host and must not capture "
        f"tensors of model_fn. {captured.name!r} {origin}{used}. Give it to the function as an "
        f"argument, {name}=(function, [..., tensor]); variables, such as the global step, can be "
        "used as they are."
    )


def _names_of_inputs(template: ModelTemplate) -> dict[tf.Operation, str]:
    """Returns the user's names for the placeholders on which a template was traced."""
    names = {}
    for name, structure in (("features", template.features), ("labels", template.labels)):
        parts = structure.items() if isinstance(structure, Mapping) else [(None, structure)]
        for key, part in parts:
            for leaf in tf.nest.flatten(part, expand_composites=True):
                if isinstance(leaf, tf.Tensor):
                    names[leaf.op] = name if key is None else f"{name}[{key!r}]"
    return names

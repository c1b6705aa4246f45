"""A step of one core, cut out of its graph: what lowering starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import functions_of
from tfx_tpu_trainer.preflight._results import Finding

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepGraph:
    """A step and what is known of it.

    Attributes:
        name: See `LoweredStep`.
        graph_def: A graph that holds the step, functions included.
        inputs: Name of a tensor that the step is given -> its static shape and dtype.
        outputs: Names of the tensors that the step gives.
        targets: Names of the ops that it runs for their effect.
        num_replicas: Copies of the step that its sums run over.
        rows: Rows of a core's batch, or `None`.
        input_names: What each input is called in messages, in their order; its tensor's name where
            empty.
        sources: Name of an op -> the user's line that made it, as far as known.
        trained: Names of the variables that are trained; `None` where that is not known.
        findings: What to warn of already.
        num_partitions: TPU devices that each copy is spread over.
        input_partitions: Name of an input that is cut for them -> its parts along each dimension.
    """

    name: str
    graph_def: v1.GraphDef
    inputs: Mapping[str, tf.TensorSpec]
    outputs: Sequence[str]
    targets: Sequence[str] = ()
    num_replicas: int = 1
    rows: int | None = None
    input_names: Sequence[str] = ()
    sources: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    trained: Collection[str] | None = None
    findings: tuple[Finding, ...] = ()
    num_partitions: int = 1
    input_partitions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def needed_nodes(self) -> list[v1.NodeDef]:
        """Returns the nodes that the step runs, in the graph's order; its inputs are not among them."""
        by_name = {node.name: node for node in self.graph_def.node}
        given = {_op_of(tensor) for tensor in self.inputs}
        pending = [*map(_op_of, self.outputs), *self.targets]
        needed: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in needed and name not in given:
                needed.add(name)
                pending += [_op_of(source) for source in by_name[name].input]
        return [node for node in self.graph_def.node if node.name in needed]

    def without_unused_inputs(self) -> StepGraph:
        """Returns the same step without the inputs that it does not read."""
        read = {_tensor(source) for node in self.needed_nodes() for source in node.input}
        read |= {*self.outputs}
        kept = [name in read for name in self.inputs]
        return dataclasses.replace(
            self,
            inputs={name: spec for (name, spec), keep in zip(self.inputs.items(), kept) if keep},
            input_names=[name for name, keep in zip(self.input_names, kept) if keep],
        )

    def functions(self) -> dict[str, v1.FunctionDef]:
        """Returns the functions of the graph by name."""
        return functions_of(self.graph_def.library)

    def look_up(self, op_name: str) -> tuple[str | None, str | None]:
        """Returns type and source line of an op; of one in a function, no type and its caller's line."""
        node = next((node for node in self.graph_def.node if node.name == op_name), None)
        return (node.op if node else None), self.source_of(op_name)

    def source_of(self, op_name: str) -> str | None:
        """Finds the user's line that made an op; of an op in a function, of what calls it."""
        while op_name:
            if self.sources.get(op_name):
                return self.sources[op_name]
            op_name = op_name.rpartition("/")[0]
        return None


def _tensor(source: str) -> str:
    return source if ":" in source else f"{source}:0"


def _op_of(tensor: str) -> str:
    """The op that a tensor's name, an input of a node or a control edge names."""
    return tensor.removeprefix("^").split(":")[0]

"""Splits a replica over the cores of a TPU: reads how tensors are cut, rejects cuts that do not fit, and cuts inputs.

`xla_sharding` (`tensorflow.python.compiler.xla.experimental`) annotates ops with an `OpSharding`: in the attribute
`_XlaSharding`, and in `sharding` of an `XlaSharding` op. Only a TPU and a preflight cut tensors; an emulated replica is
one core. The original enqueues each core's part of a tensor in the core's infeed queue; here the parts are inputs of
the program.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.source_lines import shown_source_line
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places.ops_on_tpu import nodes_of_step

v1 = tf.compat.v1
_logger = tf.get_logger()

ATTRIBUTE = "_XlaSharding"
"""The attribute with the sharding of any op's output."""

_VARIABLE = "VarHandleOp"
_READ = "ReadVariableOp"


def sharding_of(node: Any) -> xla_data_pb2.OpSharding | None:
    """Returns the sharding of an op's first output, or `None`."""
    serialized = node.attr[ATTRIBUTE].s if ATTRIBUTE in node.attr else b""
    if node.op == "XlaSharding" and not serialized:
        serialized = node.attr["sharding"].s
    if not serialized:
        return None
    sharding = xla_data_pb2.OpSharding.FromString(serialized)
    if sharding.type == xla_data_pb2.OpSharding.TUPLE:
        return sharding.tuple_shardings[0] if sharding.tuple_shardings else None
    return sharding


def replicated() -> xla_data_pb2.OpSharding:
    """Returns the sharding of a tensor that every core holds whole."""
    return xla_data_pb2.OpSharding(type=xla_data_pb2.OpSharding.REPLICATED)


def tiled(counts: Sequence[int]) -> xla_data_pb2.OpSharding:
    """Returns the sharding of a tensor that is cut into a number of parts along each dimension."""
    return xla_data_pb2.OpSharding(
        type=xla_data_pb2.OpSharding.OTHER,
        tile_assignment_dimensions=list(counts),
        tile_assignment_devices=range(math.prod(counts)),
    )


def parts(sharding: xla_data_pb2.OpSharding | None, rank: int) -> list[int]:
    """Returns the number of parts along each dimension."""
    if sharding is None or sharding.type != xla_data_pb2.OpSharding.OTHER:
        return [1] * rank
    # A dimension beyond the rank is the number of cores with the same part
    # (replicate_on_last_tile_dim).
    counts = list(sharding.tile_assignment_dimensions)
    return [*counts, *([1] * rank)][:rank]


def misfit(
    name: str, shape: Sequence[int | None], sharding: xla_data_pb2.OpSharding | None, *, cores: int
) -> str | None:
    """Explains why a sharding does not fit a tensor; `None` if it fits.

    XLA would pad a dimension that does not divide, but each core would compute with the padding.
    """
    if sharding is None or sharding.type != xla_data_pb2.OpSharding.OTHER:
        return None
    annotated = math.prod(sharding.tile_assignment_dimensions)
    if annotated not in (1, cores):
        return (
            f"{name!r} is sharded over {annotated} cores, but a replica has {cores}: set "
            f"TPUConfig(num_cores_per_replica={annotated}), or change the annotation."
        )
    return not_divisible(name, shape, parts(sharding, len(shape)))


def not_divisible(name: str, shape: Sequence[int | None], counts: Sequence[int]) -> str | None:
    """Explains which dimension of a tensor its parts do not divide; `None` if they divide all."""
    for dimension, (size, count) in enumerate(zip(shape, counts)):
        if size is not None and size % count:
            up = -(-size // count) * count
            return (
                f"Dimension {dimension} of {name!r} has the size {size}, which is not divisible by "
                f"{count} partitions: pad it to {up}, or partition it differently."
            )
    return None


def variable_shardings(nodes: Sequence[Any]) -> dict[str, xla_data_pb2.OpSharding]:
    """Returns name -> sharding, for the variables of a step that are annotated."""
    by_name = {node.name: node for node in nodes}
    found: dict[str, xla_data_pb2.OpSharding] = {}
    for node in nodes:
        sharding = sharding_of(node)
        variable = _variable_read_by(node, by_name)
        if sharding is not None and variable is not None and variable not in found:
            found[variable] = sharding
    for node in nodes:
        # A variable's own annotation wins over a reader's.
        if node.op == _VARIABLE and (sharding := sharding_of(node)) is not None:
            found[node.name] = sharding
    return found


def check_shardings(template: ModelTemplate, *, cores: int) -> None:
    """Rejects a step whose annotated tensors can't be cut evenly over the cores of a replica."""
    if cores == 1:
        return
    for op, node, _ in nodes_of_step(template):
        # Shapes of ops in functions are unknown here; a preflight checks those, too.
        sharding = sharding_of(node)
        if sharding is None:
            continue
        wrong = misfit(op.name, _shape(op), sharding, cores=cores)
        if wrong is not None:
            raise ValueError(f"{wrong} ({shown_source_line(op)})")


def _shape(op: tf.Operation) -> Sequence[int | None]:
    if op.type == _VARIABLE:
        return tf.TensorShape(op.get_attr("shape")).as_list()
    shape = op.outputs[0].shape
    return shape.as_list() if shape.rank is not None else []


def _variable_read_by(node: Any, by_name: Mapping[str, Any]) -> str | None:
    """Returns the variable whose unchanged value an op passes on."""
    while node is not None and node.op in ("XlaSharding", "Identity", _READ):
        source = by_name.get(node.input[0].split(":")[0])
        if node.op == _READ:
            return source.name if source is not None and source.op == _VARIABLE else None
        node = source
    return None


def check_counts(dims: Sequence[Any], *, num_cores_per_replica: int) -> None:
    """Checks the partition counts of `TPUConfig(input_partition_dims=...)`, without the input."""
    for index, part in enumerate(dims):
        _check_nested_counts(
            f"TPUConfig.input_partition_dims[{index}]", part, num_cores_per_replica
        )


def _check_nested_counts(where: str, dims: Any, cores: int) -> None:
    if dims is None:
        return
    if isinstance(dims, Mapping):
        for key, part in dims.items():
            _check_nested_counts(f"{where}[{key!r}]", part, cores)
    elif _are_counts(dims):
        if any(count < 1 for count in dims):
            raise ValueError(f"All input partition dims must be >= 1. {where} is {list(dims)}.")
        if math.prod(dims) not in (1, cores):
            raise ValueError(
                "The product of each input partition dim should equal to num_cores_per_replica. (dim "
                f"= {list(dims)}, num_cores_per_replica = {cores}), in {where}."
            )
    elif isinstance(dims, tuple):
        for number, part in enumerate(dims):
            _check_nested_counts(f"{where}[{number}]", part, cores)
    else:
        raise ValueError(
            f"{where} must be a list of integers, the parts of each dimension, such as [1, {cores}], "
            f"or None, or a dict of them by name; got {dims!r}."
        )


def _are_counts(dims: Any) -> bool:
    return isinstance(dims, (list, tuple)) and all(
        isinstance(count, numbers.Integral) and not isinstance(count, bool) for count in dims
    )


def check_input_partitions(
    dims: Sequence[Any] | None, *, features: Any, labels: Any, evenly: bool = False
) -> None:
    """Checks the counts of `TPUConfig(input_partition_dims=...)`, valid by `check_counts`, against a replica's input.

    Emulated replicas cut nothing, but reject what a TPU would reject. A dimension that the counts do not divide gets a
    warning, since the original cuts it, with a smaller last piece.
    """
    for where, name, counts, tensor in _walk(dims, features, labels):
        _check_fit(where, name, counts, tensor, evenly=evenly)


def input_partitions(
    dims: Sequence[Any] | None, *, features: Any, labels: Any
) -> dict[str, Sequence[int]]:
    """Returns the parts of each input tensor that is cut.

    Args:
        dims: Counts, valid by `check_input_partitions`.
        features: One replica's features.
        labels: One replica's labels, or `None`.

    Returns:
        Name of the tensor -> its parts along each dimension.
    """
    return {
        tensor.name: list(counts)
        for _, _, counts, tensor in _walk(dims, features, labels)
        if counts is not None and math.prod(counts) > 1
    }


def _walk(
    dims: Sequence[Any] | None, features: Any, labels: Any
) -> Iterator[tuple[str, str, Any, tf.Tensor]]:
    """Yields the place of counts in the settings, the name of their tensor, the counts, and the tensor."""
    if dims is None:
        return
    yield from _of_structure(dims[0], features, index=0, kind="feature")
    if len(dims) > 1 and labels is not None:
        yield from _of_structure(dims[1], labels, index=1, kind="label")


def _of_structure(
    dims: Any, tensors: Any, *, index: int, kind: str
) -> Iterator[tuple[str, str, Any, tf.Tensor]]:
    if dims is None:
        return
    where = f"TPUConfig.input_partition_dims[{index}]"
    expected, got = (sorted(a) if isinstance(a, Mapping) else [] for a in (tensors, dims))
    if expected != got:
        raise ValueError(f"{where} mismatched {kind} keys. Expected {expected}, got {got}.")
    try:
        for path, counts, tensor in _nested(where, "", dims, tensors):
            yield where + path, f"{kind}s{path}", counts, tensor
    except TypeError as error:
        raise ValueError(
            f"{where} mismatched the structure of {kind}s. input_partition_dims[{index}]: "
            f"{dims!r}, {kind}s: {tensors!r}. {error}"
        ) from error


def _nested(
    where: str, path: str, dims: Any, tensors: Any
) -> Iterator[tuple[str, Sequence[int] | None, tf.Tensor]]:
    """Descends into mappings and tuples; a list has the counts of one tensor."""
    if isinstance(tensors, Mapping):
        if not isinstance(dims, Mapping) or set(dims) != set(tensors):
            raise TypeError(f"{where}{path} must have the keys {sorted(tensors)}; got {dims!r}.")
        for key, tensor in tensors.items():
            yield from _nested(where, f"{path}[{key!r}]", dims[key], tensor)
    elif isinstance(tensors, tuple):
        if not isinstance(dims, tuple) or len(dims) != len(tensors):
            raise TypeError(f"{where}{path} must be a tuple of {len(tensors)}; got {dims!r}.")
        for number, (part, tensor) in enumerate(zip(dims, tensors, strict=True)):
            yield from _nested(where, f"{path}[{number}]", part, tensor)
    elif dims is None or _are_counts(dims):
        yield path, dims, tensors
    else:
        raise TypeError(f"{where}{path} must be a list of integers; got {dims!r}.")


def _check_fit(
    where: str, name: str, counts: Sequence[int] | None, tensor: tf.Tensor, *, evenly: bool
) -> None:
    if counts is None or math.prod(counts) == 1:
        return
    if len(counts) != tensor.shape.rank:
        raise ValueError(
            "Input partition dims must have the same number of dimensions as the `Tensor` to be "
            f"partitioned: {where} is {list(counts)} for shape {tensor.shape}."
        )
    wrong = not_divisible(name, tensor.shape.as_list(), counts)
    if wrong is not None and evenly:
        raise ValueError(f"{where} is {list(counts)}. {wrong}")
    if wrong is not None:
        # The original accepts it, so a program that trained there must train here.
        _logger.warning(
            "%s is %s. %s The last piece is smaller, or empty; a preflight refuses it.",
            where,
            list(counts),
            wrong,
        )


class CutVariable(NamedTuple):
    """A variable that is cut over the cores of a replica."""

    # TensorFlow's passes cut a variable according to its readers, since the variable itself, with its own annotation,
    # is outside of the program.

    # The op that makes its handle in the traced graph.
    variable: tf.Operation
    # Its OpSharding.
    sharding: Any

    def read(self, handle: tf.Tensor) -> tf.Tensor:
        """Reads it, inside a program."""
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.variable.get_attr("dtype"))
        value.set_shape(tf.TensorShape(self.variable.get_attr("shape")))
        return tf_private.with_sharding(value, self.sharding)

    def keep(self, handle: tf.Tensor) -> tf.Operation:
        """Cuts it for a whole program, including ops that change it without reading it."""
        return tf.raw_ops.AssignVariableOp(resource=handle, value=self.read(handle))


def cut_variables(nodes: Iterable[tf.Tensor | tf.Operation]) -> dict[str, CutVariable]:
    """Returns name of a handle -> variable, for the variables in use that a model cuts."""
    ops = list(upstream(nodes))
    found = variable_shardings([op.node_def for op in ops])
    return {op.outputs[0].name: CutVariable(op, found[op.name]) for op in ops if op.name in found}


@dataclasses.dataclass(frozen=True)
class ReplicaCores:
    """The cores of the replicas, and how inputs are cut over them."""

    # The cores of each replica; `None` if each has one.
    device_assignment: tf.tpu.experimental.DeviceAssignment | None = None
    # Name of a placeholder that is cut over a replica's cores -> its parts along each dimension;
    # each core has the others whole.
    input_partitions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def replicate(
        self, program: Callable[..., Any], inputs: Sequence[Sequence[tf.Tensor]]
    ) -> list[Any]:
        """Runs a program on each replica."""
        return v1.tpu.replicate(
            program, list(map(list, inputs)), device_assignment=self.device_assignment
        )

    def cut(self, name: str, tensor: tf.Tensor, *, stacked: bool = False) -> tf.Tensor:
        """Cuts one replica's input on the host, so each core is sent only its part."""
        counts = self._counts(name, stacked=stacked)
        if counts is None:
            return tensor
        # In row-major order, the last axis fastest, as `tiled` numbers the cores: of a matrix in
        # 2 x 2 parts they get top left, top right, bottom left, bottom right.
        pieces = [tensor]
        for axis, count in enumerate(counts):
            pieces = [each for piece in pieces for each in tf.split(piece, count, axis=axis)]
        return tf_private.partitioned_input(pieces, counts, tiled(counts).SerializeToString())

    def annotated(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """Annotates a batch, inside a program, with how it is cut."""
        counts = self._counts(name, stacked=False)
        if counts is None:
            return tensor
        return tf_private.with_sharding(tensor, tiled(counts))

    @property
    def several(self) -> bool:
        """Whether a replica has several cores."""
        assignment = self.device_assignment
        return assignment is not None and assignment.num_cores_per_replica > 1

    def _counts(self, name: str, *, stacked: bool) -> list[int] | None:
        counts = self.input_partitions.get(name)
        if counts is None:
            return None
        return [1, *counts] if stacked else list(counts)


ONE_CORE = ReplicaCores()
"""Each replica has its own core."""

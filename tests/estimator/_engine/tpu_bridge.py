"""TensorFlow's own passes for TPUs, run here: what they make of a graph, before a TPU's compiler gets it.

A TPU's runtime runs them on the graph of a session or a function. They need no TPU: they split the
graph into the program of a core and what its host does.
"""

import dataclasses
import re

import pytest
import tensorflow as tf

v1 = tf.compat.v1

# The same pipeline; TensorFlow has renamed it.
_PIPELINES = ("tf-cluster-tpu-bridge-v2", "tf-replicated-clustering-bridge-v2")
_DEVICES = [
    f"/job:worker/replica:0/task:0/device:{kind}:0" for kind in ("CPU", "TPU", "TPU_SYSTEM")
]
_OP = re.compile(r'"tf\.(\w+)"')


@dataclasses.dataclass(frozen=True)
class Split:
    """A graph as TensorFlow splits it.

    Attributes:
        host: The graph of the host, as text of MLIR.
        core: The program of a core, the same.
    """

    host: str
    core: str

    @property
    def host_ops(self) -> set[str]:
        """Types of the ops that the host runs."""
        return set(_OP.findall(self.host))

    @property
    def core_ops(self) -> set[str]:
        """Types of the ops that a core runs."""
        return set(_OP.findall(self.core))

    @property
    def input_shardings(self) -> list[bytes]:
        """How the cores of a replica share the inputs of their program; empty for what each has whole."""
        (found,) = re.findall(r"input_sharding_configuration = \[(.*?)\]", self.host)
        texts = re.findall(r'"((?:[^"\\]|\\.)*)"', found)
        return [_unescaped(text) for text in texts]

    @property
    def launch(self) -> str:
        """Ops that the host runs next to the program; empty if it only starts it."""
        _, _, launched = self.host.partition("tf_device.launch")
        return launched.partition("tf_device.cluster_func")[0]


def _unescaped(text: str) -> bytes:
    r"""MLIR writes a byte that can't be printed as `\0A`."""
    return re.sub(
        rb"\\([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode()
    )


def split_by_tensorflow(graph: tf.Graph, *wanted: tf.Tensor | tf.Operation) -> Split:
    """Splits what makes some nodes of a graph that has one TPU program."""
    names = [node.op.name if isinstance(node, tf.Tensor) else node.name for node in wanted]
    graph_def = graph.as_graph_def()
    needed = v1.graph_util.extract_sub_graph(graph_def, names)
    needed.library.CopyFrom(graph_def.library)
    module = tf.mlir.experimental.convert_graph_def(needed, pass_pipeline="")
    # A session tells of its devices; a single replica's host is looked up among them.
    devices = ", ".join(f'"{device}"' for device in _DEVICES)
    module = module.replace("{tf.versions", f"{{tf.devices = [{devices}], tf.versions", 1)
    for pipeline in _PIPELINES:
        try:
            text = tf.mlir.experimental.run_pass_pipeline(module, pipeline)
        except tf.errors.InvalidArgumentError as error:
            if "does not refer to a registered pass" not in str(error):
                raise
        else:
            host, _, core = text.partition("func.func private @_func")
            assert core, "no program was cut out"
            return Split(host, core)
    pytest.skip(f"this TensorFlow registers none of the pipelines {_PIPELINES}")

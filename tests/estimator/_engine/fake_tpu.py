"""A TPUStrategy without a TPU: its variables are on the CPU, and its steps are traced but can't run.

TensorFlow asks a cluster resolver which TPU there is, and this one says what it was told. Nothing of
TensorFlow is replaced.
"""

import collections
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.tpu import topology_pb2

v1 = tf.compat.v1

Feature = topology_pb2.TPUHardwareFeature.EmbeddingFeature

_Device = collections.namedtuple("_Device", ["name", "device_type"])
_HOST = "/job:localhost/replica:0/task:0/device"


class _Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    def __init__(self, devices: int, feature: Any, sparse_cores: int) -> None:
        self._devices, self._feature, self._sparse_cores = devices, feature, sparse_cores

    def get_tpu_system_metadata(self) -> Any:
        tpus = [_Device(f"{_HOST}:TPU:{index}", "TPU") for index in range(self._devices)]
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=self._devices,
            num_hosts=1,
            num_of_cores_per_host=self._devices,
            topology=None,
            devices=[_Device(f"{_HOST}:CPU:0", "CPU"), *tpus],
        )

    @property
    def tpu_hardware_feature(self) -> Any:
        return topology_pb2.TPUHardwareFeature(
            embedding_feature=self._feature, num_embedding_devices_per_chip=self._sparse_cores
        )

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec({})


def strategy_of(
    replicas: int, *, feature: Any = Feature.UNSUPPORTED, sparse_cores: int = 0
) -> tf.distribute.Strategy:
    """A TPUStrategy of so many devices, whose chips have this hardware for embeddings."""
    # Sessions of other tests switch it off.
    tf.config.set_soft_device_placement(True)
    return tf.distribute.TPUStrategy(_Resolver(replicas, feature, sparse_cores))


def traced_steps(creator: Any, *, count: int = 2) -> tf.Graph:
    """Opens a strategy's session, traces its loop of training steps as its first call would, and closes it."""
    session = creator.create_session()
    steps = creator._steps
    try:
        return steps._feed.eager.run(
            lambda: steps._loop.get_concrete_function(steps._iterator, tf.constant(count)).graph
        )
    finally:
        session.close()


def nodes_of(graph: tf.Graph) -> list[v1.NodeDef]:
    """All nodes of a function's graph, those of the functions that it calls too."""
    graph_def = graph.as_graph_def()
    called = [node for each in graph_def.library.function for node in each.node_def]
    return [*graph_def.node, *called]


def split_by_place(graph: tf.Graph) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Counts the ops that the TPU's program has, by type, and those of the host."""
    on_tpu: collections.Counter[str] = collections.Counter()
    on_host: collections.Counter[str] = collections.Counter()
    for node in nodes_of(graph):
        is_inside = "_tpu_replicate" in node.attr and "_xla_outside_compilation" not in node.attr
        (on_tpu if is_inside else on_host)[node.op] += 1
    return on_tpu, on_host

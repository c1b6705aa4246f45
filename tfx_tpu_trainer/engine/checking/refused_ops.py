"""Refuses, before anything runs, the TPU and XLA ops that can't run where a step shall.

What emulated cores make of such ops themselves stands in `copying/core_ops.py`; the others that
run here have a kernel of TensorFlow's for CPUs.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.engine.checking.source_lines import source_line
from tfx_tpu_trainer.engine.checking.step_ops import nodes_of_step
from tfx_tpu_trainer.engine.copying.core_ops import CORE_NUMBER
from tfx_tpu_trainer.engine.template import ModelTemplate


class _Kind(NamedTuple):
    """A kind of op that emulated cores don't run.

    Attributes:
        pattern: What the types of such ops are like.
        advice: What to do instead.
    """

    pattern: str
    advice: str


# The first that fits counts.
_KINDS = (
    _Kind(
        "TPUEmbedding|^XlaSparse|DedupData|Physical|Minibatch|CooTensor|^GlobalIterId$",
        "TPU embeddings are emulated by TPUEstimator(embedding_config_spec=...), which makes no such "
        "ops; take this one out",
    ),
    _Kind(
        "^TPU(Replicat|Partitioned|CompilationResult|OrdinalSelector)|^_TPUReplicate$",
        "TPU computations cannot be nested: model_fn runs on the core already, so call the "
        "function itself and not tpu.rewrite, replicate, shard or batch_parallel",
    ),
    _Kind(
        "^Infeed|^Outfeed|^Prelinearize",
        "features and labels come from the input_fn, and tensors go to the host by host_call or "
        "eval_metrics",
    ),
    _Kind(
        "^XlaHostCompute$|^_XlaHostCompute|^XlaSendToHost$|^XlaRecvFromHost$|^_Xla(Send|Recv)",
        "call what the host shall do by tf.compat.v1.tpu.outside_compilation(function, *tensors)",
    ),
    _Kind(
        "^(Xla)?(Send|Recv)$|^_(Host)?(Send|Recv)$",
        "cores read each other by cross_replica_sum, CollectivePermute and AllToAll",
    ),
    _Kind(
        "^_?Collective(?!Permute)",
        "it needs a tf.distribute strategy of its own; cores read each other by cross_replica_sum, "
        "CollectivePermute and AllToAll",
    ),
    _Kind("^DTensor|^CopyToMesh|^Relayout", "it needs a device mesh of DTensor"),
    _Kind(
        "^XlaSpmd|^XlaSplitND$|^XlaConcatND$|^ReadVariableXla|^AssignVariableXla",
        "an emulated replica is one core, whatever num_cores_per_replica says, so there is nothing "
        "to split over its cores; xla_sharding's annotations do nothing here and may stay",
    ),
    _Kind(
        "^XlaSet|^XlaRemoveDynamic|^TPU(CopyWith|AnnotateTensorsWith)Dynamic",
        "shapes are known here: take the op out, or cut the tensor with tf.slice",
    ),
    _Kind("^XlaIf$", "use tf.cond"),
    _Kind("^XlaCustomCall", "it calls code of a TPU's or GPU's compiler: use TensorFlow's own ops"),
    _Kind("^TopK(With)?Unique$|^KthOrderStatistic$|^MakeUnique$", "use tf.math.top_k"),
    _Kind(
        "ConfigureDistributedTPU|ShutdownDistributedTPU|ShutdownTPUSystem|GlobalTPU|"
        "ForDistributedTPU|FromDistributedTPU|SetGlobalTPUArray|^WorkerHeartbeat$",
        "the estimator starts and ends TPU systems itself: take initialize_system and "
        "shutdown_system out of model_fn",
    ),
    _Kind(
        "^_?TPU(Compile|Execute)|^TPU(ReshardVariables|RoundRobin)$|^TpuHandle|^XlaLaunch|"
        "^XlaClusterOutput$|^_Xla(Compile|Run|Merge|Aot)",
        "only TensorFlow's compilers make such ops: use tf.function(jit_compile=True)",
    ),
)

# The names of StableHLO's ops stand in a serialized module as they are.
_OF_SEVERAL_DEVICES = re.compile(
    b"replica_id|partition_id|all_gather|all_reduce|all_to_all|collective_|reduce_scatter"
)


def why_not_emulated(node: Any) -> str | None:
    """Says what to do instead of an op that emulated cores don't run.

    Args:
        node: A NodeDef.

    Returns:
        The advice, or `None` for an op that runs.
    """
    if _is_module_of_several_devices(node):
        return "its StableHLO module reads other devices: leave that to cross_replica_sum"
    return _advice_on(node.op)


def refuse_ops_not_emulated(template: ModelTemplate) -> None:
    """Refuses a step with TPU or XLA ops that emulated cores don't run.

    Args:
        template: A template traced on the inputs of one core.

    Raises:
        ValueError: Names the op, its line, and what to do instead.
    """
    for op, nodes in nodes_of_step(template):
        for node in nodes:
            advice = why_not_emulated(node)
            if advice is not None:
                raise ValueError(
                    f"Operation of type {node.op} ({node.name}) is not supported on emulated TPU "
                    f"cores: {advice}. ({_where(op)})"
                )


def refuse_ops_that_end_the_process(template: ModelTemplate) -> None:
    """Refuses a step for a CPU or GPU on which TensorFlow itself would die.

    Args:
        template: A template that runs without TPU cores, real or emulated.

    Raises:
        ValueError: Names the op, its line, and what to do instead.
    """
    for op, nodes in nodes_of_step(template):
        for node in nodes:
            if node.op in (CORE_NUMBER, "XlaReduceScatter") or _is_module_of_several_devices(node):
                raise ValueError(
                    f"Operation of type {node.op} ({node.name}) would end the process: without TPU "
                    "cores TensorFlow knows no replicas. Leave it out where params['use_tpu'] is "
                    f"false. ({_where(op)})"
                )


@functools.cache
def _advice_on(op_type: str) -> str | None:
    return next((kind.advice for kind in _KINDS if re.search(kind.pattern, op_type)), None)


def _is_module_of_several_devices(node: Any) -> bool:
    return node.op == "XlaCallModule" and bool(_OF_SEVERAL_DEVICES.search(node.attr["module"].s))


def _where(op: tf.Operation) -> str:
    return source_line(op) or "its source line is not known"

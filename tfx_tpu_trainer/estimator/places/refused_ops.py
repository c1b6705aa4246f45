"""Which TPU and XLA ops of a step run on emulated cores, which are refused before anything runs, and why.

What emulated cores make of such ops themselves stands in `copying/cross_replica_ops.py`; the others
that run here have a kernel of TensorFlow's for CPUs. Ops that run here and on no TPU are warned of.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import REPLICA_NUMBER
from tfx_tpu_trainer.estimator._engine.source_lines import is_of_a_library, source_line
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places import ops_on_tpu
from tfx_tpu_trainer.estimator.places.ops_on_tpu import StepNodes, nodes_of_step
from tfx_tpu_trainer.estimator.places.outside_compilation import is_outside

_logger = tf.get_logger()


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
        "TPU embeddings are emulated by TPUEstimator(embedding_config_spec=...), which creates no "
        "such ops; remove this one",
    ),
    _Kind(
        "^TPU(Replicat|Partitioned|CompilationResult|OrdinalSelector)|^_TPUReplicate$",
        "TPU computations cannot be nested: model_fn runs on the core already, so call the "
        "function itself and not tpu.rewrite, replicate, shard or batch_parallel",
    ),
    _Kind(
        "^Infeed|^Outfeed|^Prelinearize",
        "features and labels come from the input_fn, and tensors reach the host through host_call "
        "or eval_metrics",
    ),
    _Kind(
        "^XlaHostCompute$|^_XlaHostCompute|^XlaSendToHost$|^XlaRecvFromHost$|^_Xla(Send|Recv)",
        "call what the host should do with tf.compat.v1.tpu.outside_compilation(function, *tensors)",
    ),
    _Kind(
        "^(Xla)?(Send|Recv)$|^_(Host)?(Send|Recv)$",
        "cores read each other by cross_replica_sum, CollectivePermute and AllToAll",
    ),
    _Kind(
        "^_?Collective(?!Permute)",
        "it needs its own tf.distribute strategy; cores read each other by cross_replica_sum, "
        "CollectivePermute and AllToAll",
    ),
    _Kind("^DTensor|^CopyToMesh|^Relayout", "it needs a device mesh of DTensor"),
    _Kind(
        "^XlaSpmd|^XlaSplitND$|^XlaConcatND$|^ReadVariableXla|^AssignVariableXla",
        "an emulated replica is one core, whatever num_cores_per_replica is, so nothing can be "
        "split over its cores; annotations of xla_sharding have no effect and may stay",
    ),
    _Kind(
        "^XlaSet|^XlaRemoveDynamic|^TPU(CopyWith|AnnotateTensorsWith)Dynamic",
        "shapes are static here: remove the op, or cut the tensor with tf.slice",
    ),
    _Kind("^XlaIf$", "use tf.cond"),
    _Kind("^XlaCustomCall", "it calls code of a TPU or GPU compiler: use TensorFlow's own ops"),
    _Kind("^TopK(With)?Unique$|^KthOrderStatistic$|^MakeUnique$", "use tf.math.top_k"),
    _Kind(
        "ConfigureDistributedTPU|ShutdownDistributedTPU|ShutdownTPUSystem|GlobalTPU|"
        "ForDistributedTPU|FromDistributedTPU|SetGlobalTPUArray|^WorkerHeartbeat$",
        "the estimator initializes and shuts down TPU systems itself: remove initialize_system "
        "and shutdown_system from model_fn",
    ),
    _Kind("^GetTpuTaskId$", "all emulated cores are on one host, so remove it"),
    _Kind(
        "^_?TPU(Compile|Execute)|^TPU(ReshardVariables|RoundRobin|DummyInput)$|^TpuHandle|^XlaLaunch|"
        "^XlaClusterOutput$|^_Xla(Compile|Run|Merge|Aot)",
        "only TensorFlow's compilers make such ops: use tf.function(jit_compile=True)",
    ),
)

# The names of StableHLO's ops stand in a serialized module as they are.
_OF_SEVERAL_DEVICES = re.compile(
    b"replica_id|partition_id|all_gather|all_reduce|all_to_all|collective_|reduce_scatter"
)


def why_not_emulated(node: Any) -> str | None:
    """Says what to do instead of an op that emulated cores don't run."""
    if _is_module_of_several_devices(node):
        return "its StableHLO module reads other devices: leave that to cross_replica_sum"
    return _advice_on(node.op)


def refuse_ops_not_emulated(step: StepNodes) -> None:
    """Refuses a step with TPU or XLA ops that emulated cores don't run."""
    for op, own, inner in step:
        for node in (own, *inner):
            advice = why_not_emulated(node)
            if advice is not None:
                raise ValueError(
                    f"Operation of type {node.op} ({node.name}) is not supported on emulated TPU "
                    f"cores: {advice}. ({_where(op)})"
                )


def refuse_ops_that_end_the_process(template: ModelTemplate) -> None:
    """Refuses a step for a CPU or GPU on which TensorFlow itself would die."""
    for op, own, inner in nodes_of_step(template):
        for node in (own, *inner):
            if node.op in (REPLICA_NUMBER, "XlaReduceScatter") or _is_module_of_several_devices(
                node
            ):
                raise ValueError(
                    f"Operation of type {node.op} ({node.name}) would end the process: without TPU "
                    "cores, TensorFlow has no replicas. Leave it out if params['use_tpu'] is "
                    f"false. ({_where(op)})"
                )


@functools.cache
def _advice_on(op_type: str) -> str | None:
    return next((kind.advice for kind in _KINDS if re.search(kind.pattern, op_type)), None)


def _is_module_of_several_devices(node: Any) -> bool:
    return node.op == "XlaCallModule" and bool(_OF_SEVERAL_DEVICES.search(node.attr["module"].s))


_SHOWN = 5
# What these make of the input for an emulated core, serialized sparse rows, a TPU never sees.
_PREPARING = tuple(
    str(PACKAGE_FOLDER / "estimator" / folder) for folder in ("_engine", "places", "tpu")
)


def warn_of_ops_for_hosts(step: StepNodes) -> None:
    """Logs one warning that names the ops of a step which no TPU can run, and their lines.

    They are let run, as they would in the original with `use_tpu=False`; the preflight and a real
    TPU refuse them. What `outside_compilation` keeps on the host is left out.
    """
    found = dict(_ops_for_hosts(step))
    if not found:
        return
    shown = [f"{op.type} {op.name!r} {why} ({_where(op)})" for op, why in found.items()][:_SHOWN]
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    _logger.warning(
        "These ops run on emulated TPU cores, but no TPU can run them: %s%s. Compute this in the "
        "input_fn or in Transform, or call it through "
        "tf.compat.v1.tpu.outside_compilation(function, *tensors).",
        "; ".join(shown),
        more,
    )


def _ops_for_hosts(step: StepNodes) -> Iterator[tuple[tf.Operation, str]]:
    for op, own, inner in step:
        kept = itertools.filterfalse(is_outside, (own, *inner))
        reason = next(filter(None, map(ops_on_tpu.why_not_on_tpu, kept)), None)
        if reason is not None and not _is_made_for_emulation(op):
            yield op, reason


def _is_made_for_emulation(op: tf.Operation) -> bool:
    """Whether the engine's own preparation of the input made an op."""
    makers = [frame.filename for frame in op.traceback or () if not is_of_a_library(frame)]
    return bool(makers) and makers[-1].startswith(_PREPARING)


def _where(op: tf.Operation) -> str:
    return source_line(op) or "source line unknown"

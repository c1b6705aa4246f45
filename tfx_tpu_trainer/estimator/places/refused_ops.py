"""Rejects TPU and XLA ops that emulated cores can't run, before anything runs, with the reason.

`copying/cross_replica_ops.py` replaces some of the other TPU and XLA ops; the rest have CPU kernels. Ops that run here
but not on TPUs get a warning.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import REPLICA_NUMBER, SUM
from tfx_tpu_trainer.estimator._engine.graph_nodes import all_nodes, upstream
from tfx_tpu_trainer.estimator._engine.source_lines import (
    is_of_a_library,
    shown_source_line,
    source_line,
)
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import check_train_op
from tfx_tpu_trainer.estimator.places import ops_on_tpu
from tfx_tpu_trainer.estimator.places.ops_on_tpu import StepNodes, nodes_of_step
from tfx_tpu_trainer.estimator.places.outside_compilation import is_outside, python_of_gradient

_logger = tf.get_logger()


class _Kind(NamedTuple):
    """A kind of op that emulated cores don't run: a pattern of its types, and what to do instead."""

    pattern: str
    advice: str


# The first that matches counts.
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
        "an emulated replica is one core, with any num_cores_per_replica, so nothing can be "
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

# The names of StableHLO's ops, which are plain text in a serialized module.
_OF_SEVERAL_DEVICES = re.compile(
    b"replica_id|partition_id|all_gather|all_reduce|all_to_all|collective_|reduce_scatter"
)


def why_not_emulated(node: Any) -> str | None:
    """Returns what to do instead of an op that emulated cores don't run; `None` for one that they run."""
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
                    f"cores: {advice}. ({shown_source_line(op)})"
                )


def refuse_ops_that_end_the_process(template: ModelTemplate) -> None:
    """Refuses a step that would end TensorFlow's process on a CPU or GPU."""
    for op, own, inner in nodes_of_step(template):
        for node in (own, *inner):
            if node.op in (REPLICA_NUMBER, "XlaReduceScatter") or _is_module_of_several_devices(
                node
            ):
                raise ValueError(
                    f"Operation of type {node.op} ({node.name}) would end the process: without TPU "
                    "cores, TensorFlow has no replicas. Leave it out if params['use_tpu'] is "
                    f"false. ({shown_source_line(op)})"
                )


# A step has thousands of nodes, but of few types.
@functools.cache
def _advice_on(op_type: str) -> str | None:
    return next((kind.advice for kind in _KINDS if re.search(kind.pattern, op_type)), None)


def _is_module_of_several_devices(node: Any) -> bool:
    return node.op == "XlaCallModule" and bool(_OF_SEVERAL_DEVICES.search(node.attr["module"].s))


_SHOWN = 5
# Code of this package that serializes sparse rows for emulated cores, with ops that no TPU sees.
_PREPARING = tuple(
    str(PACKAGE_FOLDER / "estimator" / folder) for folder in ("_engine", "places", "tpu")
)


def warn_of_ops_for_hosts(step: StepNodes) -> None:
    """Warns of a step's ops that TPUs can't run, except those of `outside_compilation`."""
    # They run here, as in the original with `use_tpu=False`; a preflight and a real TPU reject them.
    found = dict(_ops_for_hosts(step))
    if not found:
        return
    first = list(found.items())[:_SHOWN]
    shown = [f"{op.type} {op.name!r} {why} ({shown_source_line(op)})" for op, why in first]
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
    """Returns whether the package's own preparation of the input made an op."""
    makers = [frame.filename for frame in op.traceback or () if not is_of_a_library(frame)]
    return bool(makers) and makers[-1].startswith(_PREPARING)


def check_training_on_cores(
    template: ModelTemplate, *, cores: int, only_outside: bool = False
) -> None:
    """Checks that a train_op trains, and that several cores train together.

    Args:
        template: A template of mode `"train"`.
        cores: Number of replicas.
        only_outside: Whether to look for Python in `outside_compilation` alone, as for a preflight, which reports other
            Python calls as ops that TPUs can't run. Defaults to `False`.

    Raises:
        ValueError: If several cores train without a sum over replicas, or with the gradient of a
            `tf.py_function`.
    """
    if check_train_op(template) and cores > 1:
        check_gradients_are_combined(template.graph)
        _check_no_gradient_of_python(template, cores=cores, only_outside=only_outside)


def check_gradients_are_combined(graph: tf.Graph) -> None:
    """Rejects training on several replicas that never sums over them."""
    if not any(node.op == SUM for node in all_nodes(graph.as_graph_def())):
        raise ValueError(
            "CrossShardOptimizer must be used for model training on TPUs: the graph has no "
            "CrossReplicaSum, so each core would train on its own. Wrap the optimizer: "
            "tf.compat.v1.tpu.CrossShardOptimizer(optimizer)."
        )


def _check_no_gradient_of_python(
    template: ModelTemplate, *, cores: int, only_outside: bool
) -> None:
    """Rejects the gradient of a `tf.py_function`, for which TensorFlow remembers only one call at a time."""
    for op in upstream([template.train_op]):
        forward = python_of_gradient(op)
        if forward is not None and (is_outside(forward.node_def) or not only_outside):
            raise ValueError(
                f"The gradient of tf.py_function {forward.name!r} can't be computed on {cores} cores: "
                "TensorFlow remembers one call of a function, and each core has its own. Write the "
                "gradient with tf.custom_gradient, calling tf.numpy_function in both directions. "
                f"({source_line(forward) or 'its source line is not known'})"
            )

"""Chooses the passes of TensorFlow's graph optimizer (Grappler), and what stays on the CPU beside a GPU.

Nothing here is needed for the numbers. Where TensorFlow sees a GPU, it runs there the ops of a step that name no
device; to decide on the CPU saves copies between the two memories, each of which waits until the GPU has done all
that was handed to it.
"""

import contextlib

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1


# The attribute of a call that holds the options of its function, a serialized ConfigProto.
_CONFIG = "config_proto"


def keep_dependencies_only(config: v1.ConfigProto) -> None:
    """Switches off all passes but the one over control dependencies, with which gradients are full."""
    rewrite = config.graph_options.rewrite_options
    rewrite.meta_optimizer_iterations = type(rewrite).ONE
    for field in rewrite.DESCRIPTOR.fields:
        is_toggle = field.enum_type is not None and field.enum_type.name == "Toggle"
        if is_toggle and field.name != "dependency_optimization":
            setattr(rewrite, field.name, type(rewrite).OFF)
    rewrite.memory_optimization = type(rewrite).NO_MEM_OPT


def optimize_dependencies_only(call: tf.Operation) -> None:
    """Has the function of a call optimized by the pass over control dependencies alone.

    A session's own options do not reach functions, which get all passes, twice. For a step of
    BERT-base on two replicas these took 3.4 s and 0.35 GB, and no step was faster for it. On a
    GPU they stay: each op is a kernel to launch, and with those that the passes fuse an MLP made 1.24
    times as many steps a second, and a CNN 1.05 times (H200).
    """
    if sees_gpus():
        return
    config = v1.ConfigProto.FromString(call.get_attr(_CONFIG))
    if config.graph_options.HasField("rewrite_options"):
        return
    keep_dependencies_only(config)
    tf_private.set_attribute(call, _CONFIG, v1.AttrValue(s=config.SerializeToString()))


def sees_gpus() -> bool:
    """Tells whether there is a GPU that the program has not hidden from TensorFlow."""
    return bool(tf.config.get_visible_devices("GPU"))


def decided_on_cpu() -> contextlib.AbstractContextManager[None]:
    """Returns a scope for ops that decide whether a loop goes on.

    A loop reads its condition on the CPU. Left to itself TensorFlow puts what a condition is made
    of on the GPU, but for int32, so that the clock and a count of batches were sent there and their
    comparison waited for, batch after batch.
    """
    return v1.device("/device:CPU:0") if sees_gpus() else contextlib.nullcontext()

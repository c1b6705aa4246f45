"""Chooses the passes of TensorFlow's graph optimizer (Grappler), and keeps ops that control loops off GPUs.

All of it is for speed. TensorFlow runs ops that name no device on a GPU where it sees one; conditions on the CPU save
copies between the two memories, each of which waits for all work queued on the GPU.
"""

import contextlib

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1


# The attribute of a call that holds the options of its function, a serialized ConfigProto.
_CONFIG = "config_proto"


def keep_dependencies_only(config: v1.ConfigProto) -> None:
    """Switches off all passes except the one over control dependencies; gradients have many of these."""
    rewrite = config.graph_options.rewrite_options
    rewrite.meta_optimizer_iterations = type(rewrite).ONE
    for field in rewrite.DESCRIPTOR.fields:
        is_toggle = field.enum_type is not None and field.enum_type.name == "Toggle"
        if is_toggle and field.name != "dependency_optimization":
            setattr(rewrite, field.name, type(rewrite).OFF)
    rewrite.memory_optimization = type(rewrite).NO_MEM_OPT


def optimize_dependencies_only(call: tf.Operation) -> None:
    """Limits the optimization of a call's function to the pass over control dependencies, except on GPUs."""
    # A session's own options do not reach functions, which get all passes, twice. For a step of
    # BERT-base on two replicas these took 3.4 s and 0.35 GB, and made no step faster. On a GPU they
    # stay, since they fuse ops, and each op is a kernel to launch: an MLP made 1.24 times as many
    # steps a second, a CNN 1.05 times (H200).
    if sees_gpus():
        return
    config = v1.ConfigProto.FromString(call.get_attr(_CONFIG))
    if config.graph_options.HasField("rewrite_options"):
        return
    keep_dependencies_only(config)
    tf_private.set_attribute(call, _CONFIG, v1.AttrValue(s=config.SerializeToString()))


def sees_gpus() -> bool:
    """Returns whether there is a GPU that the program has not hidden from TensorFlow."""
    return bool(tf.config.get_visible_devices("GPU"))


def decided_on_cpu() -> contextlib.AbstractContextManager[None]:
    """Returns a scope for ops that decide whether a loop goes on, which a loop reads on the CPU."""
    # TensorFlow would place all but int32 ops on the GPU: batch after batch, the clock and the count of batches would
    # be sent there, and the loop would wait for their comparison.
    return v1.device("/device:CPU:0") if sees_gpus() else contextlib.nullcontext()

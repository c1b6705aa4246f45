"""Loads one metagraph of a SavedModel for calling its signatures, and says what there is where it can't."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.serving._inspect import MetaGraphDescription, describe_meta_graph
from tfx_tpu_trainer.serving._saved_model_file import check_variables, read_saved_model


def load_serving(
    path: str | bytes | os.PathLike[str], tags: str | Sequence[str] = ("serve",)
) -> Any:
    """Loads a model that this package exported, or any other SavedModel, for calling its signatures.

    `tf.saved_model.load(path)` alone refuses a model with more than one metagraph, which a model for
    CPU and TPU is.

    Examples:
        >>> from tfx_tpu_trainer.serving import load_serving
        >>> import tensorflow as tf
        >>> class Double(tf.Module):
        ...     @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
        ...     def __call__(self, x):
        ...         return {"doubled": 2 * x}
        >>> tf.saved_model.save(Double(), "double")
        >>> served = load_serving("double")
        >>> print(served.signatures["serving_default"](x=tf.constant([1.0, 2.0]))["doubled"].numpy())
        [2. 4.]

    Args:
        path: folder with `saved_model.pb`; a PushedModel's uri, a Model's `Format-Serving`, or what
            `export_saved_model` has returned.
        tags: all tags of the metagraph. `("serve",)` runs anywhere, `("serve", "tpu")` on a TPU host.

    Returns:
        What `tf.saved_model.load` returns: `.signatures[name](**tensors)` gives a dict of tensors.

    Raises:
        FileNotFoundError: no such folder, or no SavedModel in it.
        ValueError: no metagraph has just these tags (those that are there are listed), or it needs a TPU
            and this machine has none, or its variables are not all there.
    """
    path = os.fsdecode(path)
    wanted = {tags} if isinstance(tags, str) else set(tags)
    saved_model = read_saved_model(path)
    meta_graphs = [describe_meta_graph(each) for each in saved_model.meta_graphs]
    for meta_graph in meta_graphs:
        if set(meta_graph.tags) == wanted:
            _check_device(path, meta_graph)
            check_variables(path, saved_model)
            return with_direct_calls(tf.saved_model.load(path, tags=sorted(wanted)))
    there = " and ".join(str(list(meta_graph.tags)) for meta_graph in meta_graphs)
    raise ValueError(
        f"The SavedModel at {path} has no metagraph with the tags {sorted(wanted)}: it has {there}. "
        "Give all the tags of one of them."
    )


def _check_device(path: str, meta_graph: MetaGraphDescription) -> None:
    if meta_graph.has_tpu_ops and not tf.config.list_logical_devices("TPU"):
        raise ValueError(
            f"The metagraph {list(meta_graph.tags)} of {path} runs only on a TPU host (it contains "
            f"{', '.join(meta_graph.tpu_ops)}), and this machine has no TPU: on this machine, load "
            'it with tags=("serve",).'
        )


def with_direct_calls(loaded: Any) -> Any:
    """Makes the signatures of a model of version 1 as quick to call as those of version 2.

    TensorFlow's loader gives functions for such signatures that try another calling convention
    first, at each call, and write an error message with all inputs printed in it before they take
    the right one. That costs several times what a small model does.
    """
    # As tf.saved_model.load documents it: only what was loaded from a plain graph has it.
    if hasattr(loaded, "prune"):
        loaded.signatures = {
            name: _direct(signature, loaded) for name, signature in loaded.signatures.items()
        }
    return loaded


def _direct(signature: Any, loaded: Any) -> Any:
    _, inputs = signature.structured_input_signature

    @tf.function(autograph=False)
    def call(**tensors: Any) -> Any:
        return signature(**tensors)

    try:
        function = call.get_concrete_function(**inputs)
    # TypeError: an input is called `self`. ValueError: as parameters of a function, `a b` and `a-b` have one name. A
    # server takes them and Python can't, which is no reason to refuse the model's other signatures.
    except (TypeError, ValueError):
        function = signature
    # The variables live as long as the loaded object, of which callers may keep only a signature.
    function.loaded = loaded
    return function

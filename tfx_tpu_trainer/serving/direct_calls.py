"""Signatures of a loaded model that Python calls without a detour."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def with_direct_calls(loaded: Any) -> Any:
    """Makes the signatures of a model of version 1 as quick to call as those of version 2.

    TensorFlow's loader gives functions for such signatures that try another calling convention
    first, at each call, and write an error message with all inputs printed in it before they take
    the right one. That costs several times what a small model does.

    Args:
        loaded: What `tf.saved_model.load` gave.

    Returns:
        The same object. Signatures of a version 1 graph take and give what they did, by name.
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

    function = call.get_concrete_function(**inputs)
    # The variables live as long as the loaded object, of which callers may keep only a signature.
    function.loaded = loaded
    return function

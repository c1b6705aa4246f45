"""The names of `tf.contrib` that programs use and TensorFlow 2 lacks, with the same arguments and variables.

`contrib.layers.layer_norm` makes the variables of `tf.contrib.layers.layer_norm`, so published checkpoints fit.
Names that TensorFlow 2 has elsewhere with the same arguments are left out; `tfx-tpu-trainer doctor` shows where they
are.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfx_tpu_trainer._support.imports import choose_keras_2

choose_keras_2()

from tfx_tpu_trainer.compat.contrib import (
    crf,
    data,
    distributions,
    framework,
    graph_editor,
    image,
    layers,
    lookup,
    metrics,
    opt,
    quantize,
    resampler,
    seq2seq,
    slim,
    staging,
    summary,
    tfprof,
    training,
)

if TYPE_CHECKING:
    from tfx_tpu_trainer.compat.contrib import cudnn_rnn, rnn

__all__ = [
    "crf",
    "cudnn_rnn",
    "data",
    "distributions",
    "framework",
    "graph_editor",
    "image",
    "layers",
    "lookup",
    "metrics",
    "opt",
    "quantize",
    "resampler",
    "rnn",
    "seq2seq",
    "slim",
    "staging",
    "summary",
    "tfprof",
    "training",
]


def __getattr__(name: str) -> Any:
    # Cells are Keras 2 layers, which TensorFlow has only with TF_USE_LEGACY_KERAS=1.
    if name in ("cudnn_rnn", "rnn"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

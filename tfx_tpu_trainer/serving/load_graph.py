"""A process that loads a metagraph's graph, without running it; started by `check.py`.

`python -m tfx_tpu_trainer.serving.load_graph LIBRARIES MODEL TAG,TAG`. TensorFlow then has checked
every node: its op, attributes, types and shapes, and the functions that it calls. It is how far a
machine without a TPU can load a metagraph for one.
"""

from __future__ import annotations

import importlib
import sys

import tensorflow as tf

from tfx_tpu_trainer.serving.saved_model_file import meta_graph_with, read_saved_model


def _main(libraries: str, path: str, tags: str) -> None:
    for name in filter(None, libraries.split(",")):
        importlib.import_module(name)
    meta_graph = meta_graph_with(read_saved_model(path), tags.split(","))
    if meta_graph is None:
        raise ValueError(f"{path} has no metagraph with the tags {tags}")
    with tf.Graph().as_default() as graph:
        tf.compat.v1.train.import_meta_graph(meta_graph)
        for signature in meta_graph.signature_def.values():
            for info in (*signature.inputs.values(), *signature.outputs.values()):
                tf.compat.v1.saved_model.utils.get_tensor_from_tensor_info(info, graph)


if __name__ == "__main__":
    _main(*sys.argv[1:])

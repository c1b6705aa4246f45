"""Serves the `serve, tpu` metagraph of a SavedModel on this host, for its numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfx_tpu_trainer.estimator.extending import TPU_TAGS
from tfx_tpu_trainer.serving import meta_graph_with, read_saved_model
from tfx_tpu_trainer.serving._both_graphs import on_cpu, served


def serve(
    path: str, feeds: Mapping[str, Any], signature: str = "serving_default"
) -> dict[str, np.ndarray]:
    """Feeds a signature of the metagraph for TPU hosts, and gives what it fetches."""
    meta_graph = on_cpu(meta_graph_with(read_saved_model(path), TPU_TAGS))
    with served(path, meta_graph) as answer:
        return answer(signature, feeds)

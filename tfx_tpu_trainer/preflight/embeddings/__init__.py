"""Embeddings planned for SparseCores: `preflight --embeddings`."""

from tfx_tpu_trainer.preflight.embeddings.ids import FileIds, IdSource, ZipfIds
from tfx_tpu_trainer.preflight.embeddings.plan import plan_embeddings
from tfx_tpu_trainer.preflight.embeddings.results import EmbeddingPlan, Need, StackPlan

__all__ = [
    "EmbeddingPlan",
    "FileIds",
    "IdSource",
    "Need",
    "StackPlan",
    "ZipfIds",
    "plan_embeddings",
]

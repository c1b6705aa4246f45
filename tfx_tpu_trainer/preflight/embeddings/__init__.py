"""Embeddings planned for SparseCores: `preflight --embeddings`."""

from tfx_tpu_trainer.preflight.embeddings.ids import FileIds, IdSource, ZipfIds
from tfx_tpu_trainer.preflight.embeddings.plan import EmbeddingPlan, StackPlan, plan_embeddings

__all__ = ["EmbeddingPlan", "FileIds", "IdSource", "StackPlan", "ZipfIds", "plan_embeddings"]

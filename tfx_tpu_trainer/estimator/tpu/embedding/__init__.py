"""Implements TPU embeddings: `EmbeddingConfigSpec`, and how each place looks up and trains its tables."""

"""Embeddings that train outside of a model."""

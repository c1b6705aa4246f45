"""TPU embeddings: `EmbeddingConfigSpec`, and how its tables are looked up and trained on each place."""

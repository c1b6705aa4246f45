"""TPU embeddings, emulated: `EmbeddingConfigSpec` and how its tables are looked up and trained."""

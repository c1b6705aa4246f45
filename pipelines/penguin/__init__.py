"""The Palmer penguins, classified by a Keras model: trained by TpuTrainer, or by TFX's stock Trainer (README.md)."""

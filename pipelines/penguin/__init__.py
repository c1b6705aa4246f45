"""Classifies Palmer penguins with a Keras model, trained by TpuTrainer or by TFX's stock Trainer (README.md)."""

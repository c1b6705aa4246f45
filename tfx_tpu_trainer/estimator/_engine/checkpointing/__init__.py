"""Checkpoints: written, restored, and refused with a reason."""

"""Predicts whether a Chicago taxi passenger tips more than a fifth of the fare."""

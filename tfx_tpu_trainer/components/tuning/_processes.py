"""The part of this process in a search of several: keras-tuner's own environment variables say so."""

from __future__ import annotations

import os

_ADDRESS, _NAME = "KERASTUNER_ORACLE_IP", "KERASTUNER_TUNER_ID"


def is_chief() -> bool:
    """Tells whether this process has the oracle for others, and runs no trial itself."""
    return _ADDRESS in os.environ and "chief" in os.environ.get(_NAME, "")


def is_worker() -> bool:
    """Tells whether this process asks another one for its trials."""
    return _ADDRESS in os.environ and not is_chief()

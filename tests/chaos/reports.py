"""Lets a process report its progress to its killer by lines on a pipe."""

import os

# Kept outside of the module, since TpuTrainer may load a module of the user again.
_descriptor: int | None = None


def report_to(descriptor: int) -> None:
    """Lets this process report.

    Args:
        descriptor: The pipe's end to write to.
    """
    global _descriptor
    _descriptor = descriptor


def report(*words: object) -> None:
    """Reports a line of words, if there is a reader."""
    if _descriptor is not None:
        os.write(_descriptor, (" ".join(map(str, words)) + "\n").encode())

"""`tfx-tpu-trainer compat PROGRAM`: `python -m tfx_tpu_trainer.compat` by its other name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click


@click.command(
    short_help="Runs a tf.estimator program unchanged.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", metavar="[OPTIONS] [PROGRAM] [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def compat(words: Sequence[str]) -> None:
    """Runs a program that uses tf.estimator, without an edit of it."""
    # In place of this process, in which the program would find our imports.
    os.execv(sys.executable, [sys.executable, "-m", "tfx_tpu_trainer.compat", *words])

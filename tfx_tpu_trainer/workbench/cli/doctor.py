"""The commands on programs of tf.estimator's times: doctor and compat."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click


@click.command(short_help="Lists the edits that a tf.estimator program needs today.")
@click.argument("paths", nargs=-1, required=True)
@click.option("--fix", is_flag=True, help="Makes the mechanical edits in the files.")
@click.option(
    "--diff",
    is_flag=True,
    help="Shows the mechanical edits as a diff; changes no file unless --fix is given.",
)
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object.")
def doctor(paths: tuple[str, ...], fix: bool, diff: bool, as_json: bool) -> None:
    """Lists what Estimator code uses: what works unchanged, and what needs which edit.

    Each of PATHS is a .py file, a notebook (.ipynb), or a folder of them. Programs are read, never
    run, and neither TensorFlow nor TFX is imported.

    The exit code is 0 if nothing needs an edit, 1 if something does, and 2 if a file can't be read.
    """
    from tfx_tpu_trainer.workbench.cli.doctor_run import run

    raise SystemExit(run(paths, fix=fix, diff=diff, as_json=as_json))


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

"""`tfx-tpu-trainer doctor FILE_OR_FOLDER ...`: what a program of tf.estimator's times needs today."""

from __future__ import annotations

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

"""`tfx-tpu-trainer prove PROGRAM`: compares a program under this package with itself under the original."""

import os
import sys
import tempfile
from collections.abc import Sequence

import click

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.terminal import standard_output


@click.command(
    short_help="Proves that a migration changed nothing.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--emulate",
    metavar="N",
    type=click.IntRange(1, 1024),
    default=None,
    help="Emulates N TPU cores on this package's side; the original runs on the host.",
)
@click.option(
    "--repair", is_flag=True, help="Runs the program in its repaired form, on both sides."
)
@click.option(
    "--repair-package",
    "packages",
    metavar="NAME",
    multiple=True,
    help="Also repairs the modules of an installed package; repeatable.",
)
@click.option(
    "-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as for python -m."
)
@click.option(
    "--original",
    metavar="PYTHON",
    help="An interpreter with TensorFlow up to 2.15. Default: one is made, once, by hash (1.7 GB).",
)
@click.option("--html", "html_file", metavar="FILE", help="Also writes the proof as a page.")
@click.option("--json", "json_file", metavar="FILE", help="Also writes the proof as JSON.")
@click.option("--records", metavar="DIR", help="Keeps what both sides recorded. Default: removed.")
@click.argument(
    "words", metavar="PROGRAM [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED
)
def prove(
    emulate: int | None,
    repair: bool,
    packages: Sequence[str],
    is_module: bool,
    original: str | None,
    html_file: str | None,
    json_file: str | None,
    records: str | None,
    words: Sequence[str],
) -> None:
    """Runs a program under the real TPUEstimator and under this package, and compares the results.

    The comparison covers each step's loss, the variables after each step, checkpoints, metrics, predictions, events'
    tags, and exports with their answers. PROGRAM must train into an empty folder of this machine.

    The exit code is 0 if all is equal, or equal up to rounding; 1 if something differs; 2 if nothing could be compared.
    """
    if not is_module and not os.path.isfile(words[0]):
        raise click.UsageError(f"can't open the program {words[0]!r}: no such file.")
    if original is not None and not os.access(original, os.X_OK):
        raise click.UsageError(f"--original {original}: no such interpreter.")
    if records is not None and os.path.exists(records):
        raise click.UsageError(f"--records {records} exists already: name a new folder.")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    from tfx_tpu_trainer.workbench.prove.environment import EnvironmentFailedError, original_python
    from tfx_tpu_trainer.workbench.prove.proof import Program, SideFailedError
    from tfx_tpu_trainer.workbench.prove.proof import prove as run_both
    from tfx_tpu_trainer.workbench.prove.report import print_proof, write_html, write_json

    program = Program(
        words=list(words[1:] if is_module else words),
        module=words[0] if is_module else None,
        repair=repair or bool(packages),
        packages=list(packages),
        emulate=emulate or 0,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(records or os.path.join(temporary, "records"))
        try:
            python = original or str(original_python(lambda line: click.echo(line, err=True)))
            proof = run_both(program, python, sys.executable, folder)
        except (EnvironmentFailedError, SideFailedError) as error:
            click.echo(f"Error: {printable(str(error))}", err=True)
            raise SystemExit(2) from None
        if html_file is not None:
            write_html(proof, program, html_file)
        if json_file is not None:
            write_json(proof, program, json_file)
    print_proof(proof, program, standard_output())
    raise SystemExit(0 if proof.holds else 1)

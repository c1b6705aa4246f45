"""`tfx-tpu-trainer prove PROGRAM`: compares a program under this package with itself under the original."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from tfx_tpu_trainer import __version__
from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.terminal import standard_output, text
from tfx_tpu_trainer._support.whole_files import write_whole

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.prove.comparison import Subject
    from tfx_tpu_trainer.workbench.prove.proof import Program, Proof

# The most ops of a kind, and the most differences, that are named.
_MOST = 8


@click.command(
    short_help="Proves that a migration changed nothing.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--emulate",
    metavar="N",
    type=click.IntRange(1, 1024),
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
    type=click.Path(exists=True, dir_okay=False, executable=True),
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
    if records is not None and os.path.exists(records):
        raise click.UsageError(f"--records {records} exists already: name a new folder.")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    from tfx_tpu_trainer.workbench.prove.environment import EnvironmentFailedError, original_python
    from tfx_tpu_trainer.workbench.prove.proof import Program, SideFailedError
    from tfx_tpu_trainer.workbench.prove.proof import prove as run_both

    name, arguments = (words[0], words[1:]) if is_module else (None, words)
    program = Program(arguments, name, repair or bool(packages), packages, emulate or 0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(records or os.path.join(temporary, "records"))
        try:
            python = original or str(original_python(lambda line: click.echo(line, err=True)))
            proof = run_both(program, python, sys.executable, folder)
        except (EnvironmentFailedError, SideFailedError) as error:
            click.echo(f"Error: {printable(str(error))}", err=True)
            raise SystemExit(2) from None
    if html_file is not None:
        _write_html(proof, program, html_file)
    if json_file is not None:
        _write_json(proof, program, json_file)
    _print_proof(proof, program)
    raise SystemExit(0 if proof.holds else 1)


def _write_json(proof: Proof, program: Program, path: str) -> None:
    values = {"program": _title_of(program), "setting": _setting(proof, program), **proof.to_json()}
    write_whole(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def _write_html(proof: Proof, program: Program, path: str) -> None:
    """Writes a self-contained page."""
    with of_extra("report", for_what="the page of a proof"):
        import jinja2
    packages = ("tfx_tpu_trainer.workbench.prove", "tfx_tpu_trainer.preflight")
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(each, "templates") for each in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("proof.html.j2").render(
        proof=proof,
        program=_title_of(program),
        setting=_setting(proof, program),
        facts=_facts(proof),
        rows=[(subject, *_cells(subject)) for subject in proof.subjects],
    )
    write_whole(path, page)


def _print_proof(proof: Proof, program: Program) -> None:
    console = standard_output()
    console.print(text(f"{_title_of(program)}: {proof.verdict}", "green" if proof.holds else "red"))
    console.print(text(_setting(proof, program)))
    table = Table("compared", "verdict", "values", "largest difference", "where", show_edge=False)
    for subject in proof.subjects:
        if subject.compared or subject.differences:
            table.add_row(*map(text, _cells(subject)))
    console.print(table)
    if proof.first is not None:
        console.print(text(f"First difference: {proof.first.title}: {proof.first.says}", "bold"))
    lines = [f"  {label}: {says}" for label, says in _facts(proof)]
    lines += [f"Not held equal: {op}" for op in proof.unheld]
    lines += [f"In part: {each}" for each in proof.partly]
    for line in lines:
        console.print(text(line))


def _title_of(program: Program) -> str:
    return program.module or str(program.words[0])


def _setting(proof: Proof, program: Program) -> str:
    place = f"on {program.emulate} emulated cores" if program.emulate else "on this host"
    repaired = ", both in the program's repaired form" if program.repair else ""
    return (
        f"The original TPUEstimator of TensorFlow {proof.versions[0]} on this host against tfx-tpu-trainer "
        f"{__version__} with TensorFlow {proof.versions[1]} {place}{repaired}: {proof.steps} training steps from "
        "the same initial values, rows and seeds."
    )


def _facts(proof: Proof) -> list[tuple[str, str]]:
    """Returns what is known of a difference: a label and a text each."""
    facts = [] if proof.op is None else [("first op", f"{proof.op.name}: {proof.op.says}")]
    for label, names in (("only the original", proof.missing), ("only ours", proof.added)):
        if names:
            facts.append((f"ops of {label}", _some(names)))
    others = [each for subject in proof.subjects for each in subject.differences]
    return facts + [(each.title, each.says) for each in others if each != proof.first][:_MOST]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _cells(subject: Subject) -> tuple[str, str, str, str, str]:
    """Returns a row of the table of what was compared."""
    verdict = subject.verdict if subject.compared or subject.differences else "none made"
    largest = f"{subject.ulps:.3g} ulps" if math.isfinite(subject.ulps) else "no rounding"
    return (
        subject.name,
        verdict,
        f"{subject.compared:,}",
        largest if subject.ulps else "",
        subject.where,
    )

"""Reports a proof as a page, as JSON and on a terminal."""

import json
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tfx_tpu_trainer import __version__
from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer._support.terminal import text
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.workbench.prove.comparison import Subject
from tfx_tpu_trainer.workbench.prove.proof import Program, Proof

_MOST = 8


def write_json(proof: Proof, program: Program, path: str) -> None:
    """Writes a proof as JSON, atomically."""
    values = {"program": title_of(program), "setting": _setting(proof, program), **proof.to_json()}
    write_whole(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_html(proof: Proof, program: Program, path: str) -> None:
    """Writes a proof as a self-contained page, atomically."""
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
        program=title_of(program),
        setting=_setting(proof, program),
        facts=_facts(proof),
        rows=[(subject, *_cells(subject)) for subject in proof.subjects],
    )
    write_whole(path, page)


def print_proof(proof: Proof, program: Program, console: Console) -> None:
    """Prints a proof."""
    console.print(text(f"{title_of(program)}: {proof.verdict}", "green" if proof.holds else "red"))
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


def title_of(program: Program) -> str:
    """Returns a program's name."""
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

"""Reports a proof as a page, as JSON and on a terminal."""

import json
import math
from typing import Any

from rich.console import Console
from rich.table import Table

from tfx_tpu_trainer import __version__
from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer._support.terminal import text
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.workbench.prove.comparison import Difference, Subject
from tfx_tpu_trainer.workbench.prove.proof import Program, Proof

_MOST = 8


def write_json(proof: Proof, program: Program, path: str) -> None:
    """Writes a proof as JSON, atomically."""
    values = {
        "program": title_of(program),
        "setting": setting_of(proof, program),
        **proof.to_json(),
    }
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
    environment.filters["ulps"] = ulps_text
    page = environment.get_template("proof.html.j2").render(
        proof=proof,
        program=title_of(program),
        setting=setting_of(proof, program),
        only_one=_only_one(proof),
        others=_others(proof)[:_MOST],
    )
    write_whole(path, page)


def print_proof(proof: Proof, program: Program, console: Console) -> None:
    """Prints a proof."""
    console.print(text(f"{title_of(program)}: {proof.verdict}", "green" if proof.holds else "red"))
    console.print(text(setting_of(proof, program)))
    table = Table(show_edge=False)
    for heading in ("compared", "values", "verdict", "largest difference"):
        table.add_column(heading)
    for each in proof.subjects:
        if each.compared or each.differences:
            largest = f"{ulps_text(each)}, {each.where}" if each.ulps else ""
            table.add_row(*map(text, (each.name, f"{each.compared:,}", each.verdict, largest)))
    console.print(table)
    if proof.first is not None:
        console.print(text(f"First difference: {proof.first.title}: {proof.first.says}", "bold"))
        if proof.op is not None and proof.op.name:
            console.print(text(f"  first op: {proof.op.name}: {proof.op.says}"))
        for label, names in _only_one(proof):
            console.print(text(f"  {label}: {', '.join(names[:_MOST])}"))
        for other in _others(proof)[:_MOST]:
            console.print(text(f"  {other.title}: {other.says}"))
    for op in proof.unheld:
        console.print(text(f"Not held equal: {op}"))
    for line in proof.partly:
        console.print(text(f"In part: {line}"))


def title_of(program: Program) -> str:
    """Returns a program's name."""
    return program.module or str(program.words[0])


def setting_of(proof: Proof, program: Program) -> str:
    """Describes what ran where."""
    place = f"on {program.emulate} emulated cores" if program.emulate else "on this host"
    repaired = ", both in the program's repaired form" if program.repair or program.packages else ""
    return (
        f"The original TPUEstimator of TensorFlow {proof.versions[0]} on this host against tfx-tpu-trainer "
        f"{__version__} with TensorFlow {proof.versions[1]} {place}{repaired}: {proof.steps[0]} training steps from "
        "the same initial values, rows and seeds."
    )


def ulps_text(subject: Subject) -> str:
    """Formats a subject's largest difference."""
    if not subject.ulps:
        return ""
    return f"{subject.ulps:.3g} ulps" if math.isfinite(subject.ulps) else "no rounding"


def _only_one(proof: Proof) -> list[tuple[str, Any]]:
    if proof.op is None:
        return []
    found = [("only the original has", proof.op.missing), ("only ours has", proof.op.added)]
    return [(label, names) for label, names in found if names]


def _others(proof: Proof) -> list[Difference]:
    return [
        each for subject in proof.subjects for each in subject.differences if each != proof.first
    ]

"""The doctor on the programs of tests/compat/doctor/corpus: each finding by file, line and what to do."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeps import mostly_swept
from tfx_tpu_trainer.compat._repairs import keep_lines
from tfx_tpu_trainer.compat.doctor import Finding, Verdict, examine, repair

REPOSITORY = Path(__file__).parents[3]
CORPUS = Path(__file__).parent / "corpus"
PROGRAMS = sorted(path.stem for path in CORPUS.glob("*.py"))
# What others show in `make test`: canned estimators the guide's page in tests/compat, queues and Keras's
# models the programs of the migration guide, there too.
ELSEWHERE = ("canned", "keras_model", "queues")
# What is left in programs that run all the same: queues on the host, and functions that nothing calls.
LEFT_IN_RUNNING = {"queues", "canned", "private_paths"}
RUNNING = [
    "canned",
    "contrib_layers",
    "contrib_tpu",
    "guarded",
    "half_migrated",
    "host_call",
    "keras_model",
    "private_paths",
    "queues",
    # Switches the process to TF 1's behaviour, so it comes last.
    "sessions",
]


@dataclasses.dataclass(frozen=True, order=True)
class Expected:
    """A mark in a program, `#: fix NAME -> EDIT` at the end of its line.

    `fix` is an edit that --fix makes, `edit` one by hand; `EDIT` is a part of the edit's text.
    """

    line: int
    name: str
    verdict: str
    edit: str


def text_of(program: str) -> str:
    return (CORPUS / f"{program}.py").read_text(encoding="utf-8")


def expected(program: str) -> list[Expected]:
    found = []
    for number, line in enumerate(text_of(program).splitlines(), 1):
        for mark in line.split(" #: ")[1:]:
            match = re.fullmatch(r"(works|note|edit|fix) (.+?)(?: -> (.+?))? *", mark)
            assert match, f"{program}.py:{number}: {mark!r} is not a mark"
            found.append(Expected(number, match[2], match[1], match[3] or ""))
    return sorted(found)


def _told(finding: Finding) -> Expected:
    verdict = "fix" if finding.fixable else finding.verdict.value
    return Expected(finding.line, finding.name, verdict, finding.edit or "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_finding_is_told_with_its_line_and_what_to_do(program):
    wanted = expected(program)
    found = sorted(map(_told, examine(text_of(program))))
    # Several findings of one line and name are distinguished by their edits.
    key = lambda each: (each.line, each.name, each.verdict)  # noqa: E731
    assert sorted(map(key, found)) == sorted(map(key, wanted))
    for mark in wanted:
        edits = [each.edit for each in found if key(each) == key(mark)]
        assert any(mark.edit in edit for edit in edits), f"{mark}: {edits}"
        if mark.verdict in ("fix", "edit"):
            assert all(edits), f"{mark} says not what to do"


@pytest.mark.parametrize("program", PROGRAMS)
def test_fix_makes_what_it_calls_fixable_and_keeps_the_rest(program):
    text = text_of(program)
    repaired = repair(text)
    compile(repaired.text, program, "exec")
    assert not any(each.fixable for each in repaired.left)
    assert repair(repaired.text).text == repaired.text
    by_hand = {
        each.name for each in examine(text) if each.verdict is Verdict.EDIT and not each.fixable
    }
    left = {each.name for each in repaired.left if each.verdict is Verdict.EDIT}
    # Names may change with an import (tf.train.batch is tf.compat.v1.train.batch then), their number not.
    assert len(left) == len(by_hand)
    # Comments stay, and lines without an edit.
    comments = [line.partition("  # ")[2] for line in text.splitlines() if "  # " in line]
    assert all(comment.partition("  #:")[0] in repaired.text for comment in comments)
    edited = {mark.line for mark in expected(program) if mark.verdict == "fix"}
    untouched = [line for number, line in enumerate(text.splitlines(), 1) if number not in edited]
    lines = repaired.text.splitlines()
    assert [line for line in untouched if line not in lines] == _changed_beside_their_mark(program)


def _changed_beside_their_mark(program: str) -> list[str]:
    """Returns lines that an edit changes although its finding is on another line."""
    return {"contrib_tpu": ["    return dataset.apply("]}.get(program, [])


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_repair_in_memory_keeps_the_lines(program):
    original = text_of(program)
    repaired = repair(original).text
    laid = keep_lines(original, repaired)
    assert ast.dump(ast.parse(laid)) == ast.dump(ast.parse(repaired))
    assert laid.count("\n") == original.count("\n")


# Runs programs one after the other in its process: what each printed, then "ok" or its traceback.
RUN_EACH = """
import pathlib, runpy, sys, traceback
import tensorflow as tf

for program in sys.argv[1:]:
    print(f"=== {pathlib.Path(program).stem}")
    tf.compat.v1.reset_default_graph()
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception:
        print(traceback.format_exc())
    else:
        print("ok")
"""


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Returns each program's result, repaired and run, if its test runs: "ok", or its traceback."""
    asked = {
        item.callspec.params["program"]
        for item in request.session.items
        if item.nodeid.startswith(request.node.nodeid) and "results" in item.fixturenames
    }
    programs = [program for program in RUNNING if program in asked]
    folder = tmp_path_factory.mktemp("repaired")
    for program in programs:
        (folder / f"{program}.py").write_text(repair(text_of(program)).text, encoding="utf-8")
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "TFX_TPU_TRAINER_EMULATE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    environment.pop("TF_USE_LEGACY_KERAS", None)
    (folder / "all_of_them.py").write_text(RUN_EACH, encoding="utf-8")
    files = (f"{folder}/{program}.py" for program in ("all_of_them", *programs))
    run = subprocess.run(
        [sys.executable, "-m", "tfx_tpu_trainer.compat", *files],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    parts = run.stdout.split("=== ")[1:]
    found = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}
    assert set(found) == set(programs), run.stdout + run.stderr
    return found


@pytest.mark.e2e
@mostly_swept("program", RUNNING, kept=[name for name in RUNNING if name not in ELSEWHERE])
def test_a_repaired_program_runs(results, program):
    left = [each for each in repair(text_of(program)).left if each.verdict is Verdict.EDIT]
    assert bool(left) == (program in LEFT_IN_RUNNING)
    assert results[program].endswith("ok"), results[program]

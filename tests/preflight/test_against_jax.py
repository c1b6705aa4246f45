"""Programs lowered by us and by JAX, compiled by one compiler: the same verdicts, and the same HBM.

    python -m pytest -n0 -m sweep tests/preflight/test_against_jax.py
    python -m pytest -n0 -m sweep tests/preflight/test_against_jax.py -k "[look_up]"      # one of them

JAX is in its own environment, `.make/jax`, which is made where it is missing.
"""

import json
import pathlib
import re
import subprocess
from typing import Any

import pytest

from benchmarks import oracle_environment
from tests.preflight import tf_programs
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._compiling import CompilerOptions, compile_steps, find_libtpu

SCRIPT = pathlib.Path(__file__).with_name("jax_programs.py")
DOCS = pathlib.Path(__file__).parents[2] / "docs" / "evidence" / "preflight.md"
TOLERANCE = 0.02


# A machine with other work takes minutes for one program.
pytestmark = pytest.mark.timeout(3600)


def of_jax(*name: str) -> Any:
    """Returns the numbers of JAX's compiler for a program; without a name, the names of all."""
    command = [str(oracle_environment.jax_python()), str(SCRIPT), find_libtpu(), *name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.sweep
@pytest.mark.parametrize("name", tf_programs.PROGRAMS)
def test_the_verdict_and_the_hbm_are_those_of_jax(name):
    program, theirs = tf_programs.PROGRAMS[name], of_jax(name)
    options = CompilerOptions(timeout_seconds=3000)
    (ours,) = compile_steps([program.lowered(name)], program.tpu, options)
    if isinstance(theirs, str):
        assert "RESOURCE_EXHAUSTED" in theirs
        assert ours.problem is not None and ours.problem.stage == "memory"
        return
    need = sum(theirs.values()) - 2 * theirs["alias"]
    print(f"{name}: {ours.need_bytes / 2**20:,.1f} MiB, of JAX {need / 2**20:,.1f} MiB")
    assert ours.need_bytes == pytest.approx(need, rel=TOLERANCE)
    # JAX compiles a program whose results do not fit, too; a TPU could not run it.
    fits = need <= find_slice(program.tpu).chip.program_hbm_bytes
    assert (ours.problem is None) == fits


@pytest.mark.sweep
def test_the_same_programs_are_compared():
    names = of_jax()
    assert names == list(tf_programs.PROGRAMS) and len(names) >= 20


def test_the_table_of_the_docs_names_the_programs():
    page = DOCS.read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| v5e:\dx\d ", page, re.MULTILINE)
    assert told == list(tf_programs.PROGRAMS)

"""Variables keep their names through every rewrite: repaired programs, held against TensorFlow 1.15's run of them."""

from __future__ import annotations

import json

import pytest

from tests.compat.doctor.layer_programs import PROGRAMS, X
from tests.compat.doctor.record_variables import RECORDING, variables_of
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.compat.doctor import Verdict, repair

RECORDED = json.loads(RECORDING.read_text("utf-8"))


# One with layers of the core and one with contrib's are enough for each change.
QUICK = ("dense", "contrib_layers")


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.sweep) for each in PROGRAMS],
)
def test_a_repaired_program_makes_the_variables_of_tensorflow_1(name):
    head, body = PROGRAMS[name]
    repaired = repair(head + X + body)
    assert [each.name for each in repaired.left if each.verdict is Verdict.EDIT] == []
    with compat.install():
        made = variables_of(repaired.text)
    assert len(made) > 5
    assert made == RECORDED[name]

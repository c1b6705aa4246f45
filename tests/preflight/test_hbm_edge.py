"""The HBM that a step needs, beside the edge where the compiler begins to refuse it."""

from __future__ import annotations

import pytest

from tests.preflight.lowered import CHECK_ONLY, lower_layers
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._results import CompiledStep

UNITS, COLUMNS = [16_384, 8192], 1024
MARGIN = 0.02


def compiled(rows: int, target: str, replicas: int) -> CompiledStep:
    step = lower_layers(UNITS, rows=rows, columns=COLUMNS, replicas=replicas)
    (result,) = compile_steps([step], target, CHECK_ONLY)
    return result


@pytest.mark.parametrize(
    ("target", "replicas"),
    [
        pytest.param("v5e:1x1", 1, marks=pytest.mark.matrix),
        pytest.param("v4:2x2x1", 4, marks=pytest.mark.sweep),
    ],
)
def test_the_edge_is_where_the_need_reaches_the_limit(target, replicas):
    few, many = 40_960, 81_920
    small, large = compiled(few, target, replicas), compiled(many, target, replicas)
    assert small.need_bytes is not None and large.need_bytes is not None
    # Activations grow with the rows, the state does not.
    bytes_of_a_row = (large.need_bytes - small.need_bytes) / (many - few)
    edge = few + (small.limit_bytes - small.need_bytes) / bytes_of_a_row

    below = compiled(int(edge * (1 - MARGIN)), target, replicas)
    above = compiled(int(edge * (1 + MARGIN)), target, replicas)
    assert below.problem is None
    assert above.problem is not None and above.problem.stage == "memory"
    # Just below it, the compiler packs in another way; the need is still what it says.
    assert below.need_bytes == pytest.approx(below.limit_bytes, rel=2 * MARGIN)
    assert below.need_bytes <= below.limit_bytes < above.need_bytes
    assert above.need_bytes == pytest.approx(above.limit_bytes, rel=2 * MARGIN)

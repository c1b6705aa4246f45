"""Reports made by hand, for what turns them into text, JSON and pages."""

import dataclasses
from typing import Any

from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._hlo_cost import OpCost
from tfx_tpu_trainer.preflight._report import PreflightReport, StepReport
from tfx_tpu_trainer.preflight._results import (
    Allocation,
    CompiledStep,
    Finding,
    LoweredStep,
    MemoryNeed,
    Problem,
)

GIB = 2**30
TPU = "v5e:2x4"

MEMORY = MemoryNeed(
    argument_bytes=6 * GIB,
    output_bytes=5 * GIB,
    alias_bytes=4 * GIB,
    temp_bytes=2 * GIB,
    generated_code_bytes=GIB // 4,
)
FINDING = Finding(
    kind="padding",
    op_name="dense/MatMul",
    op_type="MatMul",
    message="f32[1024,3] takes 42 times the memory. Make the last axis <128> & more.",
    source="model.py:12: hidden = tf.matmul(inputs, kernel)",
    wasted_bytes=511_000,
)
OVERFLOW = Problem(
    stage="memory",
    op_name="deep/table",
    op_type="VarHandleOp",
    source="model.py:7: table = get_variable('table', [10**9, 8])",
    message="The step needs 29.80 GiB of HBM, and a v5e chip has 15.75 GiB.",
    advice="Make the table smaller, or take more chips.",
    details="RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.",
)


def lowered_step(name: str = "train", **values: Any) -> LoweredStep:
    """A step that lowers."""
    given: dict[str, Any] = {
        "hlo": b"",
        "num_replicas": 8,
        "rows": 128,
        "parameter_count": 1_234_567,
        "variable_bytes": 3 * 4 * 1_234_567,
        "findings": (),
        "seconds": 0.5,
    }
    return LoweredStep(name=name, **{**given, **values})


def compiled_step(name: str = "train", **values: Any) -> CompiledStep:
    """A step that compiles and fits."""
    given: dict[str, Any] = {
        "target": TPU,
        "memory": MEMORY,
        "need_bytes": MEMORY.total,
        "limit_bytes": 15 * GIB + 3 * GIB // 4,
        "flops": 197e9,
        "bytes_accessed": 819e6,
        "collective_bytes": 0,
        "largest": (
            Allocation(
                bytes=3 * GIB,
                op_name="deep/table",
                shape="f32[1024,3]{1,0:T(8,128)}",
                category="argument",
                unpadded_bytes=GIB,
            ),
        ),
        "findings": (FINDING,),
        "seconds": 7.25,
        "problem": None,
        "costs": (
            OpCost(
                name="fusion.1",
                opcode="fusion",
                op_name="deep/MatMul",
                op_type="MatMul",
                runs=1,
                flops=197e9,
                hbm_bytes=819_000_000,
                collective_bytes=0,
                overlaps=False,
            ),
        ),
    }
    return CompiledStep(name=name, **{**given, **values})


def fitting_step(name: str = "train") -> StepReport:
    return StepReport.of(lowered_step(name), compiled_step(name), tpu_slice=find_slice(TPU))


def oversized_step(name: str = "train") -> StepReport:
    """Returns a step that the compiler rejects with its need of memory."""
    need = int(29.8 * GIB)
    compiled = compiled_step(
        name, memory=None, need_bytes=need, flops=0.0, bytes_accessed=0.0, problem=OVERFLOW
    )
    return StepReport.of(lowered_step(name), compiled, tpu_slice=find_slice(TPU))


def unlowered_step(name: str = "eval") -> StepReport:
    """TensorFlow does not turn it into HLO, so the compiler never saw it."""
    problem = Problem(
        stage="lowering",
        op_name="AsString",
        op_type="AsString",
        source="model.py:30: text = tf.strings.as_string(ids)",
        message="The op AsString handles strings, which no TPU does.",
        advice="Do that in input_fn or in metric_fn.",
    )
    return StepReport.of(
        lowered_step(name, problem=problem, rows=None), None, tpu_slice=find_slice(TPU)
    )


def report(*steps: StepReport, **values: Any) -> PreflightReport:
    made = PreflightReport(
        model="model.py",
        tpu=TPU,
        num_replicas=8,
        steps=steps or (fitting_step(),),
        tensorflow="2.16.2",
        compiler="libtpu 0.0.21",
    )
    return dataclasses.replace(made, **values)

"""Our TPUEstimator: on the host, or on emulated TPU cores."""

from __future__ import annotations

from typing import Any

from benchmarks.estimator_runner import EstimatorRunner
from benchmarks.plan import Request
from tfx_tpu_trainer.estimator import tpu


def make(request: Request, *, cores: int | None = None, jit_compile: Any = None) -> EstimatorRunner:
    options = {"save_summary_steps": request.plan.summary_steps}
    if cores is None:
        return EstimatorRunner(tpu, request, jit_compile=jit_compile, **options)
    tpu_config = tpu.TPUConfig(num_shards=cores, iterations_per_loop=request.plan.loop_steps)
    return EstimatorRunner(
        tpu, request, use_tpu=True, master="emulated", tpu_config=tpu_config, **options
    )

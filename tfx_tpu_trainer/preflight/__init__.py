"""Runs the real TPU compiler on any x86-64 Linux machine, before a TPU is paid for.

`preflight` traces a model's steps, lowers them to HLO and compiles them with libtpu in another process; its report
shows whether they fit a slice, how long a step takes and what a training costs. `sweep` does the same for many slices.
`compiler/` is the process that calls libtpu. Names are imported when they are first used, so this process starts
without TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.preflight._compiling import (
        CompilerOptions,
        PreflightUnavailableError,
        compile_steps,
        libtpu_version,
    )
    from tfx_tpu_trainer.preflight._engine_steps import InputFn, input_fn_of_specs
    from tfx_tpu_trainer.preflight._functions import preflight_function
    from tfx_tpu_trainer.preflight._input_speed import LONGEST_SECONDS, InputError, measure_input
    from tfx_tpu_trainer.preflight._price import (
        Prices,
        TrainingCost,
        TrainingLength,
        read_duration,
        training_cost,
    )
    from tfx_tpu_trainer.preflight._report import PreflightReport, StepReport, bytes_text
    from tfx_tpu_trainer.preflight._report_files import (
        read_json,
        write_html,
        write_json,
        write_sweep,
    )
    from tfx_tpu_trainer.preflight._results import CompiledStep, LoweredStep
    from tfx_tpu_trainer.preflight._run import PreflightModel, compile_and_report, preflight
    from tfx_tpu_trainer.preflight._saved_models import (
        lower_meta_graph,
        lower_saved_model,
        preflight_saved_model,
    )
    from tfx_tpu_trainer.preflight._step_time import check_slices
    from tfx_tpu_trainer.preflight._sweep import Sweep, sweep
    from tfx_tpu_trainer.preflight._text import print_report, render_costs, render_sweep

__all__ = [
    "LONGEST_SECONDS",
    "CompiledStep",
    "CompilerOptions",
    "InputError",
    "InputFn",
    "LoweredStep",
    "PreflightModel",
    "PreflightReport",
    "PreflightUnavailableError",
    "Prices",
    "StepReport",
    "Sweep",
    "TrainingCost",
    "TrainingLength",
    "bytes_text",
    "check_slices",
    "compile_and_report",
    "compile_steps",
    "input_fn_of_specs",
    "libtpu_version",
    "lower_meta_graph",
    "lower_saved_model",
    "measure_input",
    "preflight",
    "preflight_function",
    "preflight_saved_model",
    "print_report",
    "read_duration",
    "read_json",
    "render_costs",
    "render_sweep",
    "sweep",
    "training_cost",
    "write_html",
    "write_json",
    "write_sweep",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "._compiling": [
            "CompilerOptions",
            "PreflightUnavailableError",
            "compile_steps",
            "libtpu_version",
        ],
        "._engine_steps": ["InputFn", "input_fn_of_specs"],
        "._functions": ["preflight_function"],
        "._input_speed": ["LONGEST_SECONDS", "InputError", "measure_input"],
        "._price": [
            "Prices",
            "TrainingCost",
            "TrainingLength",
            "read_duration",
            "training_cost",
        ],
        "._report": ["PreflightReport", "StepReport", "bytes_text"],
        "._report_files": ["read_json", "write_html", "write_json", "write_sweep"],
        "._results": ["CompiledStep", "LoweredStep"],
        "._run": ["PreflightModel", "compile_and_report", "preflight"],
        "._saved_models": ["lower_meta_graph", "lower_saved_model", "preflight_saved_model"],
        "._step_time": ["check_slices"],
        "._sweep": ["Sweep", "sweep"],
        "._text": ["print_report", "render_costs", "render_sweep"],
    },
    extra="preflight",
)

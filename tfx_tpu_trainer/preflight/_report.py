"""The report of a preflight: whether each step of a model compiles for a slice, fits it, and how fast it can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pydantic

from tfx_tpu_trainer.hardware import Slice, find_slice
from tfx_tpu_trainer.preflight._input_speed import InputSpeed
from tfx_tpu_trainer.preflight._results import (
    Allocation,
    Collective,
    CompiledStep,
    Finding,
    FindingGroup,
    LoweredStep,
    MemoryNeed,
    Problem,
)
from tfx_tpu_trainer.preflight._step_time import (
    PUBLISHED_ERRORS,
    Estimate,
    Roofline,
    bytes_sent,
    estimate,
    roofline,
)

FORMAT = "tfx_tpu_trainer.preflight/1"
"""Value of `format` in the JSON form. Keys may be added later, but are never removed and never change their meaning."""

# Fields of the compiled step that a report has, under the same names.
_OF_PROGRAM = (
    *("memory", "need_bytes", "limit_bytes", "flops", "bytes_accessed", "collective_bytes"),
    *("largest", "findings", "problem", "collectives"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepReport:
    """The results for one step; numbers are per TPU device unless stated otherwise.

    Attributes:
        name: `"train"`, `"eval"`, `"predict"`, or `"serve:SIGNATURE"` of an exported model.
        batch_size: Rows of the step over all replicas; `None` if unknown.
        parameter_count: Elements of the trainable variables that it reads.
        variable_bytes: Bytes of all its variables, optimizer state included, without padding.
        memory: HBM that the compiled program needs; `None` if it did not compile.
        need_bytes: The same in one number; if it did not fit, the need in the compiler's message; else `None`.
        limit_bytes: HBM that a program may use; `None` if the compiler was not run.
        flops: Operations.
        bytes_accessed: Bytes read from and written to HBM.
        collective_bytes: Bytes that go into sums over the replicas.
        roofline: Bounds over the whole slice; `None` if it did not compile.
        largest: The largest buffers in HBM, largest first.
        findings: Warnings.
        problem: Why it can't run on the slice, or `None`.
        lowering_seconds: Duration of the lowering to HLO by TensorFlow.
        compiling_seconds: Duration of the compilation.
        collectives: The data that the devices exchange, the largest first.
        network_bytes: Bytes that one slice must send to the others.
        estimate: Its estimated time over the whole slice; `None` if it did not compile.
    """

    name: str
    batch_size: int | None
    parameter_count: int
    variable_bytes: int
    memory: MemoryNeed | None = None
    need_bytes: int | None = None
    limit_bytes: int | None = None
    flops: float = 0.0
    bytes_accessed: float = 0.0
    collective_bytes: int = 0
    roofline: Roofline | None
    largest: tuple[Allocation, ...] = ()
    findings: tuple[Finding, ...]
    problem: Problem | None
    lowering_seconds: float
    compiling_seconds: float
    collectives: tuple[Collective, ...] = ()
    network_bytes: int = 0
    estimate: Estimate | None = None

    @classmethod
    def of(
        cls,
        lowered: LoweredStep,
        compiled: CompiledStep | None,
        *,
        tpu_slice: Slice,
        num_slices: int = 1,
    ) -> StepReport:
        """Combines the results of lowering and compiling.

        Args:
            lowered: The step as HLO.
            compiled: The compiler's result; `None` if lowering has failed.
            tpu_slice: The slice for which it was compiled.
            num_slices: The number of such slices that run it, each with its share of the rows. Defaults to 1.

        Returns:
            The report.
        """
        replicas = lowered.num_replicas * num_slices
        batch_size = None if lowered.rows is None else lowered.rows * replicas
        network_bytes = bytes_sent(
            compiled.collective_bytes if compiled else 0,
            num_cores_per_replica=lowered.num_partitions,
            num_slices=num_slices,
        )
        bound = estimated = None
        if compiled is not None and compiled.problem is None:
            estimated = estimate(
                compiled.costs,
                tpu_slice,
                num_replicas=lowered.num_replicas * lowered.num_partitions,
                unknown_loops=compiled.unknown_loops,
                network_bytes=network_bytes,
                rows=batch_size,
            )
            bound = roofline(
                tpu_slice,
                flops=compiled.flops,
                bytes_accessed=compiled.bytes_accessed,
                collective_bytes=compiled.collective_bytes,
                collectives=compiled.collectives,
                network_bytes=network_bytes,
                num_replicas=lowered.num_replicas,
                rows=batch_size,
            )
        # Without a program, a report has the findings and the problem of lowering.
        of_program: dict[str, Any] = {"findings": lowered.findings, "problem": lowered.problem}
        if compiled is not None:
            of_program = {name: getattr(compiled, name) for name in _OF_PROGRAM}
        return cls(
            name=lowered.name,
            batch_size=batch_size,
            parameter_count=lowered.parameter_count,
            variable_bytes=lowered.variable_bytes,
            roofline=bound,
            lowering_seconds=lowered.seconds,
            compiling_seconds=compiled.seconds if compiled else 0.0,
            network_bytes=network_bytes,
            estimate=estimated,
            **of_program,
        )

    @property
    def ok(self) -> bool:
        """Whether it compiles and fits."""
        return self.problem is None

    @property
    def hbm_by_category(self) -> dict[str, int]:
        """Bytes of HBM by category; empty if it did not compile."""
        if self.memory is None:
            return {}
        return {
            "variables and inputs": self.memory.argument_bytes,
            "results that replace no variable": max(
                0, self.memory.output_bytes - self.memory.alias_bytes
            ),
            "values in between": self.memory.temp_bytes,
            "program": self.memory.generated_code_bytes,
        }

    @property
    def gap_bytes(self) -> int:
        """Bytes of HBM that no value fills when it is fullest; 0 if it did not compile."""
        return 0 if self.memory is None else self.memory.gap_bytes

    @property
    def verdict(self) -> str:
        """Reports in one line whether it compiles and fits, or the problem."""
        if self.problem is not None:
            return str(self.problem)
        if self.need_bytes is None or not self.limit_bytes:
            return "compiles"
        return f"compiles and fits: {bytes_text(self.need_bytes)} of {bytes_text(self.limit_bytes)} HBM"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputLimit:
    """The speed of a training's input, compared with that of its step, over the whole slice."""

    input_rows: float  # rows a second that the hosts deliver
    bound_rows: float  # upper bound on the rows a second that the chips train
    estimated_rows: float  # their estimate
    # Time of a step's rows from the hosts to the chips, as a share of the estimated step; the runtime copies them while
    # the previous step runs.
    transfer_share: float

    @property
    def limited_by(self) -> str:
        """`"input"`, `"chips"`, or `"either"` if the input lies between estimate and bound."""
        if self.input_rows < self.estimated_rows:
            return "input"
        return "chips" if self.input_rows >= self.bound_rows else "either"

    def __str__(self) -> str:
        what = {
            "input": "the input is the limit",
            "chips": "the chips are the limit",
            "either": "either may be the limit",
        }[self.limited_by]
        return (
            f"{what}: the hosts deliver {count_text(self.input_rows)} rows/s, the chips train "
            f"about {count_text(self.estimated_rows)} and at most {count_text(self.bound_rows)}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """The TPU compiler's verdict on a model, for one slice.

    Attributes:
        model: Name of the model, for the reader.
        tpu: The slice, such as `"v5e:2x4"`.
        num_replicas: Copies of the model, on all slices.
        steps: Its steps.
        tensorflow: Version of TensorFlow that has lowered them.
        compiler: Name and version of the TPU compiler, such as `"libtpu 0.0.21"`.
        num_cores_per_replica: TPU devices of each copy.
        num_slices: Slices that run it, joined by the data center's network.
        input: The speed of the training's input; `None` if it was not measured.
    """

    model: str
    tpu: str
    num_replicas: int
    steps: tuple[StepReport, ...]
    tensorflow: str
    compiler: str
    num_cores_per_replica: int = 1
    num_slices: int = 1
    input: InputSpeed | None = None

    @property
    def ok(self) -> bool:
        """Whether every step compiles and fits."""
        return all(step.ok for step in self.steps)

    @property
    def tpu_slice(self) -> Slice:
        """The slice."""
        return find_slice(self.tpu)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Facts that a reader needs to interpret the numbers."""
        lowering = (
            "Steps are lowered with the kernels of XLA:CPU instead of the TPU's: this stage "
            "misjudges an op that only one of them has."
        )
        compiler = (
            f"The TPU compiler ({self.compiler}) is newer than the TPU runtime of TensorFlow "
            f"{self.tensorflow}: under that runtime a program may need somewhat more or less "
            "memory."
        )
        bounds = (
            "Bounds on step times and examples per second are from published peak rates: real "
            "steps are slower. A loop whose number of iterations depends on data counts once; "
            "reading the input and work on the host are not included."
        )
        estimates = (
            "Estimated times are sums over the kernels of the compiled program, at the share of the "
            f"peak rates that published trainings reach. Their error on {PUBLISHED_ERRORS}."
        )
        if self.tpu_slice.chip.runs_tensorflow:
            return lowering, compiler, bounds, estimates
        unsupported = (
            f"Google supports no TensorFlow on {self.tpu_slice.chip.generation}: a program that "
            "compiles here may not run there."
        )
        return lowering, compiler, bounds, estimates, unsupported

    @property
    def input_limit(self) -> InputLimit | None:
        """The input compared with the training step; `None` if one of them is unknown."""
        step = next((each for each in self.steps if each.name == "train"), None)
        if self.input is None or step is None or step.estimate is None or not step.batch_size:
            return None
        bound = step.roofline
        if bound is None or bound.examples_per_second is None or not step.estimate.step_seconds:
            return None
        return InputLimit(
            input_rows=self.input.slice_rows_per_second,
            bound_rows=bound.examples_per_second,
            estimated_rows=step.batch_size / step.estimate.step_seconds,
            transfer_share=(
                self.input.transfer_seconds(step.batch_size) / step.estimate.step_seconds
            ),
        )

    @property
    def findings(self) -> dict[Finding, tuple[str, ...]]:
        """Each warning -> names of its steps; most warnings are the same in several steps."""
        found: dict[Finding, tuple[str, ...]] = {}
        for step in self.steps:
            for finding in dict.fromkeys(step.findings):
                found[finding] = (*found.get(finding, ()), step.name)
        return found

    @property
    def finding_groups(self) -> tuple[FindingGroup, ...]:
        """The findings; those of one kind with one remedy are one group, and each op counts once."""
        groups: dict[Any, dict[Any, Finding]] = {}
        steps: dict[Any, dict[str, None]] = {}
        for finding, names in self.findings.items():
            key = (finding.kind, finding.advice or finding)
            groups.setdefault(key, {}).setdefault(finding.op_name or finding, finding)
            steps.setdefault(key, {}).update(dict.fromkeys(names))
        return tuple(
            FindingGroup(kind=key[0], findings=tuple(group.values()), steps=tuple(steps[key]))
            for key, group in groups.items()
        )

    def summary(self) -> str:
        """Returns one line: the problem, or that there is none."""
        return f"{self.model} on {self.tpu}: " + "; ".join(
            f"{step.name}: {step.verdict}" for step in self.steps if step.ok is self.ok
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values, derived ones (`ok`, bounds, caveats) included."""
        chip, limit = self.tpu_slice.chip, self.input_limit
        of_limit = limit and {**dataclasses.asdict(limit), "limited_by": limit.limited_by}
        return {
            "format": FORMAT,
            "ok": self.ok,
            "model": self.model,
            "tpu": self.tpu,
            "chip": dataclasses.asdict(chip),
            "num_replicas": self.num_replicas,
            "num_cores_per_replica": self.num_cores_per_replica,
            "num_slices": self.num_slices,
            "tensorflow": self.tensorflow,
            "compiler": self.compiler,
            "steps": [_step_to_json(step) for step in self.steps],
            "input": self.input and {**self.input.to_json(), **(of_limit or {})},
            "caveats": list(self.caveats),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PreflightReport:
        """Makes a report from the result of `to_json`.

        Args:
            values: The JSON object.

        Returns:
            The report.

        Raises:
            ValueError: If it is not a report's JSON object.
        """
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            found = values.get("format") if isinstance(values, Mapping) else values
            raise ValueError(f"format={found!r} is not a preflight report: expected {FORMAT!r}.")
        try:
            # Keys that `to_json` derived are ignored.
            return pydantic.TypeAdapter(cls).validate_python(values)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"The preflight report is damaged: {where}: {first['msg']}."
            ) from error


def _step_to_json(step: StepReport) -> dict[str, Any]:
    bound = step.roofline
    return {
        **dataclasses.asdict(step),
        "ok": step.ok,
        "hbm_by_category": step.hbm_by_category,
        "roofline": bound
        and {
            **dataclasses.asdict(bound),
            "step_seconds_lower_bound": bound.step_seconds,
            "examples_per_second_upper_bound": bound.examples_per_second,
            "limited_by": bound.limited_by,
        },
        "estimate": step.estimate
        and {
            **dataclasses.asdict(step.estimate),
            "step_seconds": step.estimate.step_seconds,
            "examples_per_second": step.estimate.examples_per_second,
        },
    }


def bytes_text(count: float) -> str:
    """Formats a number of bytes, such as `"15.7 GiB"`."""
    for unit in ("bytes", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{_short(count)} {unit}"
        count /= 1024
    return f"{_short(count)} GiB"


def share_text(share: float) -> str:
    """Formats a share, such as `"3.2%"`; a small one with as many digits as it needs."""
    percent = 100 * share
    if percent >= 10:
        return f"{percent:.0f}%"
    if not percent or percent >= 0.1:
        return f"{percent:.1f}%"
    return f"{percent:.1g}%" if percent >= 0.001 else "under 0.001%"


def count_text(count: float) -> str:
    """Formats a count, such as `"1.23 M"`; exactly below ten thousand."""
    if abs(count) < 10_000:
        return f"{count:,.0f}"
    for unit in ("k", "M", "G"):
        count /= 1000
        if abs(count) < 1000:
            return f"{_short(count)} {unit}"
    return f"{_short(count / 1000)} T"


def flop_text(count: float) -> str:
    """Formats a number of operations, such as `"146 GFLOP"`."""
    text = count_text(count)
    return f"{text}FLOP" if text[-1].isalpha() else f"{text} FLOP"


def seconds_text(seconds: float) -> str:
    """Formats a duration, such as `"12.3 ms"`."""
    if seconds >= 1:
        return f"{_short(seconds)} s"
    if seconds >= 1e-3:
        return f"{_short(seconds * 1e3)} ms"
    return f"{_short(seconds * 1e6)} µs"


def duration_text(seconds: float) -> str:
    """Formats the length of a training, such as `"3 h 20 min"`."""
    if seconds < 60:
        return seconds_text(seconds)
    minutes = round(seconds / 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [f"{days:,} d"] * bool(days) + [f"{hours} h"] * bool(hours)
    return " ".join([*parts, *([f"{minutes} min"] if minutes or not parts else [])])


def _short(value: float) -> str:
    """Formats three digits, or the whole number if it has more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

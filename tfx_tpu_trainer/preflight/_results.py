"""The findings and numbers of a preflight about a step: plain values that become JSON."""

import dataclasses

from tfx_tpu_trainer.preflight._hlo_cost import OpCost


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that compiles but costs time or memory, or does not run on the TPU.

    Attributes:
        kind: `"padding"`: a small dimension is padded to the 8 x 128 tiles of the TPU's registers.
            `"dynamic_shape"`: a shape depends on data, so the TPU computes for its upper bound.
            `"wide_dtype"`: float64 or int64, which the TPU emulates. `"host_op"`: work of
            the model that stays on the host.
        op_name: Name of the TensorFlow op; `None` if the finding is about the whole step.
        op_type: Its type, such as `"MatMul"`, or `None`.
        message: One sentence with the finding, its cost and the remedy.
        source: `"file.py:12: the line's text"` of the user's model; `None` if unknown.
        wasted_bytes: Bytes of padding if the kind is `"padding"`, else 0.
        advice: The end of the message, the remedy, which other ops share.
    """

    kind: str
    op_name: str | None = None
    op_type: str | None = None
    message: str
    source: str | None = None
    wasted_bytes: int = 0
    advice: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """Findings of one kind, with one remedy."""

    kind: str
    findings: tuple[Finding, ...]  # one for each op, the first the costliest of its step
    steps: tuple[str, ...]  # names of the steps that have any of them

    @property
    def message(self) -> str:
        """The first finding's message, and the number of further ones."""
        first, *more = self.findings
        if not more:
            return first.message
        what = first.message.removesuffix(first.advice).strip()
        like = "1 more op is" if len(more) == 1 else f"{len(more)} more ops are"
        return f"{what} {like} like it. {first.advice}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a step cannot run on the TPU."""

    # `"lowering"`: TensorFlow does not turn it into HLO. `"compiler"`: the TPU compiler rejects it. `"memory"`: it does
    # not fit in HBM. `"crash"`: the compiler's process died. `"timeout"`: it took too long. `"set-up"`: the request is
    # inconsistent, so nothing is known about the model.
    stage: str
    op_name: str | None = None  # name of the TensorFlow op at fault; `None` if unknown
    op_type: str | None = None  # its type, or `None`
    # `"file.py:12: the line's text"` of the user's model; `None` if unknown.
    source: str | None = None
    message: str  # the problem, in one or two sentences
    advice: str  # the remedy, in one or two sentences
    details: str = ""  # the compiler's own text, shortened; may be empty

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.message}{where} {self.advice}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoweredStep:
    """A step of one core as HLO: the input of the TPU compiler.

    Attributes:
        name: `"train"`, `"eval"`, `"predict"`, or `"serve:SIGNATURE"`
            of an exported model.
        hlo: Serialized `HloModuleProto`; empty if there is a problem.
        num_replicas: Copies of the model in its all-reduces.
        rows: Rows of a core's batch; `None` if the inputs have no common first axis.
        parameter_count: Elements of the trainable variables that it reads.
        variable_bytes: Bytes of all variables that it reads, optimizer state included, as dense
            arrays without padding.
        findings: Warnings.
        seconds: Duration of the lowering.
        problem: Why it can't be lowered, or `None`.
        num_partitions: TPU devices of each copy.
        op_types: TensorFlow op name -> op type and the user's source line (or `None`), for the ops of the step, in
            which later stages look up names.
    """

    name: str
    hlo: bytes
    num_replicas: int
    rows: int | None
    parameter_count: int = 0
    variable_bytes: int = 0
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    problem: Problem | None = None
    num_partitions: int = 1
    op_types: dict[str, tuple[str, str | None]] = dataclasses.field(
        default_factory=dict, repr=False
    )

    def look_up(self, op_name: str) -> tuple[str | None, str | None]:
        """Returns type and source line of an op, each `None` if unknown."""
        return self.op_types.get(op_name, (None, None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allocation:
    """A buffer in HBM."""

    bytes: int  # its size with padding
    # The TensorFlow op or variable that it belongs to, or else the compiler's name.
    op_name: str
    shape: str  # such as `"f32[1024,512]{1,0:T(8,128)}"`
    category: str  # `"argument"` (variables and inputs), `"output"` or `"temp"`
    unpadded_bytes: int  # its size without padding


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """HBM that a program needs on each TPU device, in bytes."""

    argument_bytes: int  # variables and inputs
    output_bytes: int  # updated variables and results
    alias_bytes: int  # part of the outputs that takes the place of arguments
    temp_bytes: int  # everything in between, for example activations
    generated_code_bytes: int  # the program itself
    # Part of `temp_bytes` that no value fills when HBM is fullest, which XProf's memory viewer omits from its peak.
    gap_bytes: int = 0

    @property
    def total(self) -> int:
        """The total number of bytes."""
        return (
            self.argument_bytes
            + self.output_bytes
            - self.alias_bytes
            + self.temp_bytes
            + self.generated_code_bytes
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """The ops of one kind by which the devices of a compiled program exchange data."""

    kind: str  # in XLA's terms, such as `"all-reduce"` or `"all-gather"`
    # `"replicas"`: the copies of the model, as in the sum of the gradients. `"cores"`: the TPU devices of one copy.
    between: str
    count: int  # ops of the program; those of a loop's body count once
    bytes: int  # bytes that one device gives to them or gets from them, whichever is more


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """The TPU compiler's result for a step, for one TPU device.

    Attributes:
        name: See `LoweredStep`.
        target: Slice for which it was compiled, such as `"v5e:2x4"`.
        memory: HBM that it needs; `None` if it did not compile.
        need_bytes: `memory.total`; if it did not fit, the need in the compiler's message; else `None`.
        limit_bytes: HBM that a program may use on one TPU device of that chip.
        flops: Operations of one step on one device; 0 if it did not compile.
        bytes_accessed: Bytes that it reads from and writes to HBM.
        collective_bytes: Bytes that go into the sums over the replicas.
        largest: The largest buffers, largest first.
        findings: Those of the lowered step and of the compiled program.
        seconds: Duration of the compilation.
        problem: Why it did not compile, or `None`.
        collectives: The data that the devices exchange, by kind of op, the largest first.
        costs: The costs of its instructions, in the order in which they run; empty if it did not compile.
        unknown_loops: Loops that count once because their trips depend on data.
        program: The optimized program, a serialized `HloProto` with its buffer assignment; empty if it did not compile.
    """

    name: str
    target: str
    memory: MemoryNeed | None = None
    need_bytes: int | None = None
    limit_bytes: int
    flops: float = 0.0
    bytes_accessed: float = 0.0
    collective_bytes: int = 0
    largest: tuple[Allocation, ...] = ()
    findings: tuple[Finding, ...]
    seconds: float
    problem: Problem | None = None
    collectives: tuple[Collective, ...] = ()
    costs: tuple[OpCost, ...] = dataclasses.field(default=(), repr=False)
    unknown_loops: int = 0
    program: bytes = dataclasses.field(default=b"", repr=False)

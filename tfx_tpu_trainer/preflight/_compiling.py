"""Compiles lowered steps for a slice of TPU chips with libtpu, each in a separate process."""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import platform
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer._support.processes import module_command
from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.hardware import Slice, find_slice
from tfx_tpu_trainer.preflight._findings import find_padding
from tfx_tpu_trainer.preflight._hbm import HbmBuffers, read_buffers
from tfx_tpu_trainer.preflight._hlo_module import HloModule, bytes_between_replicas
from tfx_tpu_trainer.preflight._refusals import (
    compiler_problem,
    memory_problem,
    read_memory_refusal,
)
from tfx_tpu_trainer.preflight._results import (
    Allocation,
    CompiledStep,
    LoweredStep,
    MemoryNeed,
    Problem,
)
from tfx_tpu_trainer.preflight.compiler.tpu_compiler import CompileRequest, CompileResponse

INSTALL = "pip install 'tfx-tpu-trainer[preflight]'"

_FILE = "libtpu.so"
_PROCESS = "tfx_tpu_trainer.preflight.compiler.tpu_compiler"

_LARGEST_SHOWN = 10

_DUMP = "dump"
_DUMP_FLAGS = "--xla_dump_hlo_as_proto=true --xla_dump_hlo_as_text=false"

# The messages of the C library, libtpu's allocator, C++ and Python: which of them hits the limit first differs between
# machines.
_OUT_OF_MEMORY = re.compile(
    r"cannot allocate memory|failed to map segment|mmap error|bad_alloc|MemoryError", re.IGNORECASE
)
# libtpu's last log line when one of its own conditions fails.
_FATAL = re.compile(r"^F\d{4} .*?\] (.+)")

_LESS_WORK = (
    "Compile fewer steps at a time, raise its limits (timeout_seconds, memory_limit_gib), or use "
    "effort=-1.0 (--effort -1), which takes a fraction of the time and memory, for another program."
)


class PreflightUnavailableError(RuntimeError):
    """No TPU compiler is available on this machine."""


def find_libtpu(path: str | None = None) -> str:
    """Finds the compiler's library."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise PreflightUnavailableError(
            f"The TPU compiler runs on x86-64 Linux only; this is {platform.system()} on "
            f"{platform.machine()}. Run the preflight in a Linux container."
        )
    if path is not None:
        library = os.path.join(path, _FILE) if os.path.isdir(path) else path
        if not os.path.isfile(library):
            raise PreflightUnavailableError(
                f"libtpu_path={path!r}: {_FILE} does not exist there. Give the file, or leave "
                f"libtpu_path out and install the package: {INSTALL}."
            )
        return os.path.abspath(library)
    spec = importlib.util.find_spec("libtpu")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if os.path.isfile(os.path.join(folder, _FILE)):
            return os.path.join(folder, _FILE)
    raise PreflightUnavailableError(
        f"libtpu, which holds the TPU compiler, is not installed: {INSTALL}, or give the path of a "
        f"{_FILE} as libtpu_path."
    )


def libtpu_version(path: str | None = None) -> str:
    """Names the compiler, for reports.

    Args:
        path: As in `find_libtpu`.

    Returns:
        A name such as `"libtpu 0.0.21"`; the path if one is given.

    Raises:
        PreflightUnavailableError: If it does not exist.
    """
    library = find_libtpu(path)
    return library if path is not None else f"libtpu {importlib.metadata.version('libtpu')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompilerOptions:
    """How the compiler is run.

    Attributes:
        libtpu_path: A `libtpu.so` to use instead of the installed package's. Defaults to `None`.
        timeout_seconds: Seconds after which a compilation is stopped. Defaults to 300.
        memory_limit_gib: The most memory that a compiler's process may address, GiB. Defaults to
            `None`: that of this machine.
        effort: How hard the compiler optimizes, from -1.0 (the least: enough to know whether it compiles) to 1.0. Less
            effort makes a different program, which may need more or less HBM and time. Defaults to `None`, the
            compiler's own choice.
    """

    libtpu_path: str | None = None
    timeout_seconds: float = 300.0
    memory_limit_gib: float | None = None
    effort: float | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("timeout_seconds", "memory_limit_gib"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be a number above 0.")
        if self.effort is not None and not -1 <= self.effort <= 1:
            raise ValueError(f"effort={self.effort} must be from -1.0 to 1.0.")


def compile_steps(
    steps: Sequence[LoweredStep],
    target: Slice | str,
    options: CompilerOptions | None = None,
) -> tuple[CompiledStep, ...]:
    """Compiles steps with Google's own TPU compiler; no TPU is needed.

    Args:
        steps: Lowered steps; those with a problem are passed on.
        target: The slice, or its name, such as `"v5e:2x4"`.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Returns:
        The result of each step, in their order.

    Raises:
        ValueError: If the slice does not exist; names the nearest.
        PreflightUnavailableError: If there is no compiler, or it is too old or too new for that
            slice.
    """
    options = options or CompilerOptions()
    tpu_slice = find_slice(target) if isinstance(target, str) else target
    library = find_libtpu(options.libtpu_path)
    return tuple(_Compilation(step, tpu_slice, library, options).run() for step in steps)


# Each compilation is its own process: libtpu aborts when one of its conditions fails, memory can only be limited per
# process, and a hanging compiler can only be killed.
class _Compilation:
    """The compilation of one step for one slice."""

    def __init__(
        self, step: LoweredStep, tpu_slice: Slice, library: str, options: CompilerOptions
    ) -> None:
        self._step = step
        self._slice = tpu_slice
        self._library = library
        self._options = options
        self._limit = tpu_slice.chip.program_hbm_bytes
        self._started = time.monotonic()

    def run(self) -> CompiledStep:
        step = self._step
        if step.problem is not None:
            return self._result(problem=step.problem)
        problem = _replicas_problem(step, self._slice)
        if problem is not None:
            return self._result(problem=problem)
        arguments = HloModule(step.hlo).parameters(of_one_core=True)
        # If variables and inputs alone are too large, there is no need to compile.
        if sum(each.bytes for each in arguments) > self._limit:
            # For programs like this the compiler's message may be about something else.
            return self._too_large(sum(each.bytes for each in arguments), arguments)
        with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
            return self._compile(folder)

    def _compile(self, folder: str) -> CompiledStep:
        request = CompileRequest(
            program=self._step.hlo,
            libtpu=self._library,
            topology=self._slice.name,
            topology_options=_topology_options(self._slice),
            num_replicas=self._step.num_replicas,
            num_partitions=self._step.num_partitions,
            effort=self._options.effort,
            memory_limit_bytes=_memory_limit(self._options.memory_limit_gib),
        )
        request.write(folder)
        try:
            with said_while_waiting(
                f"the TPU compiler to compile {self._step.name} for {self._slice.name}",
                change=f"It is stopped after {self._options.timeout_seconds:g} s (timeout_seconds, --timeout).",
            ):
                ended = subprocess.run(
                    module_command(_PROCESS, folder),
                    env=_environment(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    timeout=self._options.timeout_seconds,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return self._result(problem=_timeout_problem(self._options.timeout_seconds))
        response = CompileResponse.read(folder)
        if response is None:
            errors = ended.stderr.decode(errors="replace")
            return self._result(problem=_crash_problem(ended.returncode, errors))
        # The dump is the same program with its buffer assignment, which the API does not return. Without a dump, only
        # the statistics are used (`_memory_need`).
        program = _dumped(folder) or response.program
        return self._read(dataclasses.replace(response, program=program))

    def _read(self, response: CompileResponse) -> CompiledStep:
        if response.refused_by is None:
            return self._compiled(response)
        if response.refused_by == "plugin":
            if _OUT_OF_MEMORY.search(response.message):
                return self._result(problem=_crash_problem(0, response.message))
            raise PreflightUnavailableError(
                f"{self._library} can't be used as the TPU compiler: {response.message}. Reinstall "
                "libtpu, or give another libtpu_path."
            )
        if response.refused_by == "topology":
            raise PreflightUnavailableError(
                f"The TPU compiler {self._library} doesn't know {self._slice.name}: "
                f"{response.message}. Give a newer one as libtpu_path."
            )
        refusal = read_memory_refusal(response.message)
        if refusal is not None:
            arguments = HloModule(self._step.hlo).parameters(of_one_core=True)
            uncounted = 0 if refusal.arguments_counted else sum(each.bytes for each in arguments)
            return self._too_large(
                refusal.need_bytes + uncounted,
                sorted([*refusal.largest, *arguments], key=lambda each: -each.bytes),
            )
        return self._result(problem=compiler_problem(response.code, response.message, self._step))

    def _compiled(self, response: CompileResponse) -> CompiledStep:
        memory = _memory_need(response.memory, read_buffers(response.program))
        module = HloModule.of_optimized(response.program)
        largest = module.allocations(temp_bytes=memory.temp_bytes)
        if memory.total > self._limit:
            # The compiler counts variables, inputs and intermediate values, but not a step's results.
            return self._too_large(memory.total, largest)
        collectives = module.collectives()
        if self._step.num_partitions == 1:
            # Before compilation, they have the types in which the model sums.
            collective_bytes = HloModule(self._step.hlo).collective_bytes()
        else:
            collective_bytes = bytes_between_replicas(collectives)
        costs, unknown_loops = module.costs()
        return self._result(
            memory=memory,
            need_bytes=memory.total,
            flops=response.costs.get("flops", 0.0) + module.flops_of_more_trips(),
            bytes_accessed=float(module.hbm_bytes()),
            collective_bytes=collective_bytes,
            largest=tuple(largest[:_LARGEST_SHOWN]),
            collectives=collectives,
            findings=(*self._step.findings, *find_padding(largest, self._step.look_up)),
            costs=tuple(costs),
            unknown_loops=unknown_loops,
            program=response.program,
        )

    def _too_large(self, need: int, allocations: Sequence[Allocation]) -> CompiledStep:
        problem = memory_problem(self._step, self._slice.name, need, self._limit, allocations)
        return self._result(
            problem=problem,
            need_bytes=need,
            largest=tuple(allocations[:_LARGEST_SHOWN]),
        )

    def _result(self, **found: Any) -> CompiledStep:
        return CompiledStep(
            name=self._step.name,
            target=self._slice.name,
            limit_bytes=self._limit,
            seconds=time.monotonic() - self._started,
            **{"findings": self._step.findings, **found},
        )


def _memory_need(stats: Mapping[str, int], buffers: HbmBuffers | None) -> MemoryNeed:
    """Combines the compiler's statistics with its buffer assignment.

    These numbers fill HBM just when the compiler begins to reject a model.
    """
    # The assignment holds every buffer once: arguments, outputs and intermediate values. An output in an argument's
    # place is one buffer, but the statistics count it as both; hence `alias`. Example: variables of 4 GiB, updated in
    # place, in buffers of 6 GiB leave 6 - 4 - 4 + 4 = 2 GiB.
    temp = stats["temp"]
    if buffers is not None:
        temp = buffers.bytes - stats["argument"] - stats["output"] + stats["alias"]
    return MemoryNeed(
        argument_bytes=stats["argument"],
        output_bytes=stats["output"],
        alias_bytes=stats["alias"],
        temp_bytes=max(0, temp),
        generated_code_bytes=stats["generated_code"],
        gap_bytes=buffers.gap_bytes if buffers is not None else 0,
    )


def _topology_options(tpu_slice: Slice) -> Mapping[str, Any]:
    """Returns the compiler's options for a slice, without its name."""
    options: dict[str, Any] = {}
    if tpu_slice.num_chips == 1:
        options["chips_per_host_bounds"] = [1, 1, 1]
    if tpu_slice.chip.generation == "v4":
        # By default the compiler treats the two cores of a v4 as separate devices, where TensorFlow sees one.
        options["chip_config_name"] = "megacore"
    return options


def _replicas_problem(step: LoweredStep, tpu_slice: Slice) -> Problem | None:
    # Single cores serve an exported model: each has the whole model, on any slice.
    serves = step.name.startswith("serve")
    devices = step.num_replicas * step.num_partitions
    if devices == tpu_slice.num_devices or (serves and step.num_replicas == 1):
        return None
    each = "" if step.num_partitions == 1 else f" of {step.num_partitions} cores each"
    return Problem(
        stage="set-up",
        message=(
            f"The step sums over {step.num_replicas} replicas{each}, but {tpu_slice.name} has "
            f"{tpu_slice.num_devices} TPU devices."
        ),
        advice=(
            f"Lower it for num_replicas={tpu_slice.num_devices // step.num_partitions}, or name a "
            f"slice of {devices} devices."
        ),
    )


def _memory_limit(gib: float | None) -> int:
    if gib is not None:
        return int(gib * 2**30)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _environment(folder: str) -> dict[str, str]:
    path = [str(PACKAGE_FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    # The C API does not return buffers; libtpu reads XLA's flags for dumps.
    dump = (os.environ.get("XLA_FLAGS", ""), f"--xla_dump_to={folder}/{_DUMP}", _DUMP_FLAGS)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "XLA_FLAGS": " ".join(filter(None, dump)),
    }


def _dumped(folder: str) -> bytes | None:
    """Returns the program dumped by libtpu, a serialized `HloProto` with buffers."""
    found = pathlib.Path(folder, _DUMP).glob("*.after_optimizations.hlo.pb")
    # Small intermediate programs of the compiler are dumped as well.
    return max((each.read_bytes() for each in found), key=len, default=None)


def _timeout_problem(seconds: float) -> Problem:
    return Problem(
        stage="timeout",
        message=f"The TPU compiler did not finish within {seconds:g} s and was stopped.",
        advice=_LESS_WORK,
    )


def _crash_problem(code: int, errors: str) -> Problem:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if _OUT_OF_MEMORY.search(errors):
        why = "ran out of the memory it may use"
    elif code == -signal.SIGKILL:
        why = "was killed, as Linux does when memory runs out"
    elif code < 0:
        said = next(filter(None, map(_FATAL.search, lines)), None)
        why = f"was ended by {signal.Signals(-code).name}" + (f" ({said[1]})" if said else "")
    else:
        why = f"ended with exit code {code}"
    return Problem(
        stage="crash",
        message=f"The TPU compiler's process {why}.",
        advice=_LESS_WORK,
        details="\n".join(lines[-10:]),
    )

"""Compiling for slices: what is refused, and what becomes of a compiler that fails itself."""

import ctypes
import math
import os
import pathlib
import signal
import sys
import threading
import time

import pytest

from tests.bad_input import case, row
from tests.preflight.lowered import CHECK_ONLY, lower_layers
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.hardware import CHIPS, known_slices
from tfx_tpu_trainer.preflight._compiling import (
    CompilerOptions,
    PreflightUnavailableError,
    compile_steps,
    libtpu_version,
)
from tfx_tpu_trainer.preflight._refusals import read_memory_refusal
from tfx_tpu_trainer.preflight._results import LoweredStep

GIB = 2**30


@pytest.fixture(scope="module")
def step() -> LoweredStep:
    return lower_layers([128], rows=64, columns=128)


def smallest_slice(generation: str) -> str:
    slices = [each for each in known_slices() if each.chip.generation == generation]
    return min(slices, key=lambda each: each.num_chips).name


# Those of two cores a chip, and those of one; other tests compile for v5e and v5p.
@mostly_swept("generation", [name for name in CHIPS if name != "tpu7x"], kept=["v3", "v6e"])
def test_every_generation_compiles(generation):
    target = smallest_slice(generation)
    devices = next(each for each in known_slices() if each.name == target).num_devices
    chip = CHIPS[generation]
    layers = lower_layers([128], rows=64, columns=128, replicas=devices)
    (compiled,) = compile_steps([layers], target, CHECK_ONLY)
    assert compiled.problem is None
    assert compiled.limit_bytes == chip.program_hbm_bytes <= 96 * GIB
    assert compiled.need_bytes < compiled.limit_bytes // 100


def test_an_oversized_model_is_refused_with_the_allocation_named():
    # The first layer's activations: 4 * 131072 * 32768 bytes.
    step = lower_layers([32_768, 1024], rows=131_072, columns=1024)
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    problem = compiled.problem
    assert problem is not None and problem.stage == "memory"
    assert compiled.memory is None and compiled.need_bytes > 16.6 * GIB
    assert (problem.op_name, problem.op_type) == ("layer_0/product", "MatMul")
    assert 'tf.matmul(hidden, kernel, name=f"layer_{layer}/product")' in problem.source
    assert "layer_0/product 16.00 GiB (f32[131072,32768]" in problem.message
    assert "may use only 15.75 GiB on v5e:1x1" in problem.message
    assert "fewer rows for each core" in problem.advice
    first = compiled.largest[0]
    assert (first.bytes, first.category) == (16 * GIB, "temp")


def test_the_words_of_a_newer_compiler_are_understood():
    found = read_memory_refusal(
        "Ran out of memory on HBM, the total memory required for HLO temporaries (15.80G) exceeds "
        "available HBM (15.75G)."
    )
    assert found is not None and found.arguments_counted
    assert (found.need_bytes, found.limit_bytes) == (int(15.80 * GIB), int(15.75 * GIB))
    assert read_memory_refusal("Unexpected operand type for FFT") is None


def test_one_buffer_that_is_larger_than_the_memory_of_a_chip():
    # The message of libtpu 0.0.21 about a sort of f32[131072,65536] on a v5e.
    found = read_memory_refusal(
        "Allocation (size=34359738368) would exceed memory (size=17179869184) :: #allocation7 "
        "[shape = 'f32[131072,65536]{1,0:T(8,128)}', space=hbm, size = 0xffffffffffffffff, "
        "tag = 'output of fusion.remat2@{}'] :: <no-hlo-instruction>"
    )
    assert found is not None and not found.arguments_counted
    assert (found.need_bytes, found.limit_bytes) == (32 * GIB, 16 * GIB)
    (buffer,) = found.largest
    assert (buffer.bytes, buffer.op_name) == (32 * GIB, "output of fusion.remat2")
    assert buffer.shape == "f32[131072,65536]{1,0:T(8,128)}"


def test_replicas_that_do_not_match_the_slice(step):
    (compiled,) = compile_steps([step], "v5e:2x4", CHECK_ONLY)
    assert compiled.problem is not None and compiled.problem.stage == "set-up"
    assert "sums over 1 replicas, but v5e:2x4 has 8 TPU devices" in compiled.problem.message
    assert "num_replicas=8" in compiled.problem.advice


@pytest.mark.parametrize(
    "target",
    [
        case("preflight", f"`compile_steps(steps, {target!r})`", says, values=target)
        for target, says in (
            ("v5e:3x3", "v5e has no slice '3x3'; nearest: v5e:2x4 (8 chips)"),
            ("v7:2x2", "unknown generation 'v7'; use one of v2, v3, v4, v5e, v5p, v6e"),
        )
    ],
)
def test_an_unknown_slice(step, target, refused):
    with refused(ValueError):
        compile_steps([step], target)


@row(
    "preflight",
    "a libtpu that is too old for the chip",
    "doesn't know tpu7x:2x2x1: ",
    "Give a newer one as libtpu_path",
)
def test_a_compiler_older_than_the_chip(refused):
    with refused(PreflightUnavailableError):
        compile_steps([lower_layers([8], rows=8, columns=8, replicas=8)], "tpu7x:2x2x1")


@row("preflight", "no libtpu is installed", "is not installed: pip install")
def test_no_libtpu_installed(step, monkeypatch, refused):
    # What Python itself does for a module that must not be found.
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with refused(PreflightUnavailableError):
        compile_steps([step], "v5e:1x1")


def test_a_libtpu_path(step, tmp_path):
    import libtpu

    folder = str(pathlib.Path(libtpu.__file__).parent)
    (compiled,) = compile_steps([step], "v5e:1x1", CompilerOptions(libtpu_path=folder, effort=-1.0))
    assert compiled.problem is None
    assert libtpu_version(folder) == f"{folder}/libtpu.so"
    assert libtpu_version().startswith("libtpu 0.")
    with pytest.raises(PreflightUnavailableError, match=r"libtpu\.so does not exist there"):
        compile_steps([step], "v5e:1x1", CompilerOptions(libtpu_path=str(tmp_path)))


def test_a_library_that_is_no_compiler(step, tmp_path):
    for content in (b"", pathlib.Path("/proc/self/maps").read_bytes()):
        (tmp_path / "libtpu.so").write_bytes(content)
        with pytest.raises(PreflightUnavailableError, match="can't be used as the TPU compiler"):
            compile_steps([step], "v5e:1x1", CompilerOptions(libtpu_path=str(tmp_path)))
    other = next(name for name in ("libm.so.6", "libc.so.6") if ctypes.CDLL(name))
    with pytest.raises(PreflightUnavailableError, match="GetPjrtApi"):
        compile_steps([step], "v5e:1x1", CompilerOptions(libtpu_path=_path_of(other)))


def _path_of(library: str) -> str:
    ctypes.CDLL(library)
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.endswith(library))


def test_a_compiler_that_takes_too_long_is_stopped(step):
    (compiled,) = compile_steps([step], "v5e:1x1", CompilerOptions(timeout_seconds=0.1))
    assert compiled.problem is not None and compiled.problem.stage == "timeout"
    assert "not finish within 0.1 s and was stopped" in compiled.problem.message
    assert "timeout_seconds" in compiled.problem.advice
    assert compiled.seconds < 10
    assert _compile_processes() == []


# While libtpu is loaded, and while it compiles.
@pytest.mark.parametrize("gib", [0.3, 1])
def test_a_compiler_that_runs_out_of_memory(step, gib):
    (compiled,) = compile_steps([step], "v5e:1x1", CompilerOptions(memory_limit_gib=gib))
    assert compiled.problem is not None and compiled.problem.stage == "crash"
    assert "ran out of the memory it may use" in compiled.problem.message
    assert "memory_limit_gib" in compiled.problem.advice


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGKILL, "was killed, as Linux does when memory runs out"),
        (signal.SIGABRT, "was ended by SIGABRT"),
    ],
)
def test_a_compiler_that_is_killed(step, number, says):
    # While it loads libtpu, which takes longer than finding it.
    killer = threading.Thread(target=_kill_the_compiler, args=(number,))
    killer.start()
    (compiled,) = compile_steps([step], "v5e:1x1")
    killer.join()
    assert compiled.problem is not None and compiled.problem.stage == "crash"
    assert says in compiled.problem.message


def _kill_the_compiler(number: signal.Signals) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in _compile_processes():
            os.kill(process, number)
            return
        time.sleep(0.01)


def _compile_processes() -> list[int]:
    """This process's children that compile."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_text()
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid() and "compiler.tpu_compiler" in command:
            found.append(int(folder.name))
    return found


def test_a_step_with_a_problem_is_passed_on():
    step = lower_layers([400_000], rows=8, columns=100_000)
    (compiled,) = compile_steps([step], "v5e:1x1")
    assert compiled.problem is step.problem is not None
    assert (compiled.name, compiled.need_bytes, compiled.flops) == ("train", None, 0)


@pytest.mark.parametrize(
    "options",
    [
        case(
            "preflight",
            f"`CompilerOptions({name}={value!r})`",
            f"{name}={value} must be {says}",
            values={name: value},
        )
        for name, value, says in (
            ("timeout_seconds", 0, "a number above 0"),
            ("timeout_seconds", math.nan, "a number above 0"),
            ("memory_limit_gib", -1, "a number above 0"),
            ("effort", 2, "from -1.0 to 1.0"),
        )
    ],
)
def test_options_are_checked(options, refused):
    with refused(ValueError):
        CompilerOptions(**options)

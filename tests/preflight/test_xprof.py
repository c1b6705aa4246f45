"""The profile of a compiled step: what its files hold. That XProf opens them: tests/engines/test_xprof.py."""

from __future__ import annotations

import pathlib

import pytest
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests.preflight.lowered import CHECK_ONLY, lower_layers
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._hbm import HbmBuffers, read_buffers
from tfx_tpu_trainer.preflight._run import compile_and_report

TPU = "v5e:1x1"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A step's report, the folder of its profile, and the step."""
    folder = tmp_path_factory.mktemp("profile")
    step = lower_layers([1024, 512], rows=2048, columns=256)
    made = compile_and_report(
        [step], tpu_slice=find_slice(TPU), name="layers", options=CHECK_ONLY, profile=str(folder)
    )
    return made.steps[0], folder / "plugins" / "profile" / "train-v5e_1x1", step


def _space(folder: pathlib.Path):
    return xplane_pb2.XSpace.FromString((folder / "preflight.xplane.pb").read_bytes())


def _stats(plane, stats):
    names = {number: each.name for number, each in plane.stat_metadata.items()}
    return {names[each.metadata_id]: getattr(each, each.WhichOneof("value")) for each in stats}


def test_the_program_of_the_profile_has_the_reports_buffers(profiled):
    report, folder, _ = profiled
    (file,) = folder.glob("*.hlo_proto.pb")
    proto = hlo_pb2.HloProto.FromString(file.read_bytes())
    assert proto.hlo_module.name == file.name.removesuffix(".hlo_proto.pb")
    assert read_buffers(file.read_bytes()) == HbmBuffers(
        bytes=report.need_bytes - report.memory.generated_code_bytes, gap_bytes=report.gap_bytes
    )


def test_the_kernels_take_their_estimated_time_together(profiled):
    report, folder, _ = profiled
    device = _space(folder).planes[0]
    lines = {line.name: line for line in device.lines}
    ops = sum(each.duration_ps for each in lines["XLA Ops"].events)
    assert lines["Steps"].events[0].duration_ps == pytest.approx(ops, rel=1e-3)
    # Copies that nothing hides are on a line of their own.
    assert ops / 1e12 <= report.estimate.step_seconds * 1.001
    assert ops / 1e12 >= report.estimate.compute_seconds


def test_each_kernel_names_its_op_and_the_models_line(profiled):
    _, folder, _ = profiled
    device = _space(folder).planes[0]
    found = [_stats(device, each.stats) for each in device.event_metadata.values()]
    products = [each for each in found if each.get("tf_op", "").endswith("product:MatMul")]
    assert products
    assert all("lowered.py:" in each["source"] for each in products)
    assert all(each["hlo_category"] == "convolution fusion" for each in products if each["flops"])

"""A report as a page, and the profile of a compiled step; tests/engines/test_xprof.py sees that XProf opens it."""

import dataclasses
import html as html_module
import html.parser
import pathlib
import re

import pytest
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests.preflight.lowered import profile_layers
from tests.preflight.reports import (
    FINDING,
    GIB,
    TPU,
    compiled_step,
    fitting_step,
    lowered_step,
    oversized_step,
    report,
    unlowered_step,
)
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._hbm import HbmBuffers, read_buffers
from tfx_tpu_trainer.preflight._report import StepReport
from tfx_tpu_trainer.preflight._report_files import hbm_bar, render_html
from tfx_tpu_trainer.preflight._results import Collective, Finding, MemoryNeed

_VOID = {"meta", "br", "rect"}


class _Page(html.parser.HTMLParser):
    """Checks that elements are closed in order, and keeps them with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID - {"rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize(
    "made",
    [report(), report(fitting_step("eval"), oversized_step(), unlowered_step("predict"))],
    ids=["ok", "not ok"],
)
def test_the_page_is_whole_and_needs_nothing_else(made):
    text = render_html(made)
    page = _Page(text)
    for attributes in (attributes for _, attributes in page.elements):
        assert not {"src", "href", "srcset", "data"} & set(attributes)
    assert not page.all("script") and not page.all("link")
    assert "url(" not in text and "@import" not in text and "http" not in text
    ids = [each["id"] for each in page.all("section")]
    assert ids == [*(step.name for step in made.steps), "findings"]
    assert ("not ready" in text) is not made.ok


def test_the_bar_shows_hbm_by_category():
    page = _Page(render_html(report()))
    bars = page.all("rect")
    whole = 15.75 * GIB
    assert [float(each["width"]) for each in bars] == pytest.approx(
        [100 * size * GIB / whole for size in (6, 1, 2, 0.25)], abs=1e-3
    )
    ends = [float(each["x"]) + float(each["width"]) for each in bars]
    assert [float(each["x"]) for each in bars] == pytest.approx([0, *ends[:-1]], abs=1e-2)
    labels = [part.label for part in hbm_bar(fitting_step()).parts]
    assert labels == [
        "variables and inputs",
        "results that replace no variable",
        "values in between",
        "program",
    ]


def test_the_bar_of_what_does_not_fit_is_full():
    (part,) = hbm_bar(oversized_step()).parts
    assert (part.x, part.width, part.bytes) == (0, 100, int(29.8 * GIB))
    assert hbm_bar(unlowered_step()).parts == ()


def test_the_bar_of_a_small_model_is_on_its_own_scale():
    memory = MemoryNeed(
        argument_bytes=600, output_bytes=0, alias_bytes=0, temp_bytes=300, generated_code_bytes=100
    )
    step = StepReport.of(
        lowered_step(),
        compiled_step(memory=memory, need_bytes=1000, limit_bytes=10_000_000),
        tpu_slice=find_slice(TPU),
    )
    assert [part.width for part in hbm_bar(step).parts] == [60, 30, 10]
    text = _words(render_html(report(step)))
    assert "1000 bytes of 9.54 MiB (0.01%)" in text
    assert "The whole bar is what the step uses, 0.01% of what a program may use." in text
    assert "The whole bar" not in render_html(report())


def test_findings_with_one_remedy_are_one():
    advice = "Cast to tf.int32."
    found = [
        Finding(
            kind="wide_dtype", op_name=f"op{n}", message=f"op{n} is wide. {advice}", advice=advice
        )
        for n in range(3)
    ]
    # The evaluation has another size of the first one.
    of_eval = dataclasses.replace(found[0], message=f"op0 is wider. {advice}")
    train, evaluation = (
        StepReport.of(
            lowered_step(name), compiled_step(name, findings=given), tpu_slice=find_slice(TPU)
        )
        for name, given in (("train", (*found, FINDING)), ("eval", (of_eval,)))
    )
    made = report(train, evaluation)
    assert [(group.kind, group.steps) for group in made.finding_groups] == [
        ("wide_dtype", ("train", "eval")),
        ("padding", ("train",)),
    ]
    text = _words(render_html(made))
    assert "train, eval: op0 is wide. 2 more ops are like it. Cast to tf.int32." in text
    assert "2 more op1 is wide. op2 is wide." in text and "op0 is wider" not in text
    assert "op2 is wide. Cast" in made.to_json()["steps"][0]["findings"][2]["message"]


def test_the_bar_holds_a_program_that_needs_more_than_the_limit():
    step = StepReport.of(
        lowered_step(), compiled_step(limit_bytes=GIB), tpu_slice=find_slice("v5e:2x4")
    )
    parts = hbm_bar(step).parts
    assert parts[-1].x + parts[-1].width == pytest.approx(100, abs=0.01)


def test_the_page_of_several_cores_and_slices_names_both_and_their_collectives():
    collectives = (
        Collective(kind="all-reduce", between="replicas", count=49, bytes=3 * GIB),
        Collective(kind="all-gather", between="cores", count=1024, bytes=GIB // 2),
    )
    step = StepReport.of(
        lowered_step(num_replicas=2, num_partitions=4),
        compiled_step(collectives=collectives, collective_bytes=3 * GIB),
        tpu_slice=find_slice(TPU),
        num_slices=4,
    )
    made = report(step, num_replicas=8, num_cores_per_replica=4, num_slices=4)
    text = _words(render_html(made))
    for part in (
        "Preflight of model.py for 4 slices of v5e:2x4: ready",
        "8 replicas of 4 cores each;",
        "25 Gbit/s to other slices.",
        "HBM of each core of a replica: 9.25 GiB of 15.8 GiB",
        "all-reduce replicas 49 3 GiB",
        "all-gather the cores of a replica 1,024 512 MiB",
        # 2 (s - 1) / s of what the 4 cores of a replica sum, through the adapters of 8 chips at once.
        "each slice sends 18 GiB to the others, in 773 ms or more",
        "limited by network",
        "network 773 ms)",
        "upper bound of all slices",
    ):
        assert part in text


def test_the_page_of_one_slice_and_one_core_speaks_of_neither():
    text = _words(render_html(report()))
    assert "8 replicas; a chip has" in text and "HBM of one device" in text
    for part in ("cores", "Collectives", "other slices", "network"):
        assert part not in text


def _words(page: str) -> str:
    """The text of a page, without its elements."""
    return re.sub(r"\s+", " ", html_module.unescape(re.sub(r"<[^>]*>", " ", page))).replace(
        " :", ":"
    )


def test_the_model_s_names_are_text_not_html():
    step = dataclasses.replace(oversized_step(), name="serve_v1:<b>")
    text = render_html(report(fitting_step(), step, model="<script>alert(1)</script>"))
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "Make the last axis &lt;128&gt; &amp; more." in text


def test_everything_of_a_problem_is_on_the_page():
    text = re.sub(r"\s+", " ", render_html(report(oversized_step())))
    for part in (
        "</span> train, 1,024 rows: does not fit</h2>",
        "The step needs 29.80 GiB of HBM",
        "deep/table",
        "model.py:7: table = get_variable(",
        "Make the table smaller, or take more chips.",
        "RESOURCE_EXHAUSTED",
        "HBM of one device: 29.8 GiB of 15.8 GiB (189%)",
    ):
        assert part in text


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A step's report, the folder of its profile, and the step."""
    folder = tmp_path_factory.mktemp("profile")
    step, of_step = profile_layers(str(folder))
    return of_step, folder / "plugins" / "profile" / "train-v5e_1x1", step


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
    # Copies that nothing hides are on a separate line.
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

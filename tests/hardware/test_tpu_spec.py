import math
import pathlib
import subprocess
import sys

import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer.hardware import CHIPS, TpuSpec, find_slice, known_slices


@pytest.mark.parametrize("found", known_slices(), ids=lambda each: f"{each.name}/{each.hosts}")
def test_every_slice_of_the_table_holds_together(found):
    assert found.num_chips == math.prod(int(side) for side in found.topology.split("x"))
    assert found.chips_per_host * found.hosts == found.num_chips
    assert found.chips_per_host in (1, 4, 8)
    assert found.gke_machine_type or found.vertex_machine_type
    for machine in (found.gke_machine_type, found.vertex_machine_type):
        if machine and machine != "cloud-tpu":
            assert machine.endswith(f"-{found.chips_per_host}t")
    assert (found.gke_machine_type is None) == (found.gke_accelerator is None)
    spec = TpuSpec.parse(found.name, hosts=found.hosts)
    assert spec.tpu_slice == found
    assert spec.num_replicas() == found.num_chips * CHIPS[found.chip.generation].devices


def test_no_two_slices_are_the_same():
    keys = [(each.name, each.hosts) for each in known_slices()]
    assert len(keys) == len(set(keys))
    assert {each.chip.generation for each in known_slices()} == set(CHIPS)


@pytest.mark.parametrize(
    ("name", "topology", "hosts", "replicas"),
    [
        ("v2:2x2", "2x2", 1, 8),
        ("v3:4x4", "4x4", 4, 32),
        ("v4:2x2x2", "2x2x2", 2, 8),
        ("v5e:1x1", "1x1", 1, 1),
        ("v5e:2x4", "2x4", 1, 8),
        ("v5e:16", "4x4", 4, 16),
        ("v5p:4", "2x2x1", 1, 4),
        ("v6e:256", "16x16", 64, 256),
    ],
)
def test_a_slice_is_found_by_its_topology_or_its_chips(name, topology, hosts, replicas):
    spec = TpuSpec.parse(name)
    assert spec.tpu_slice.topology == topology
    assert spec.tpu_slice.hosts == hosts
    assert spec.tpu_config() == {"num_shards": replicas, "num_cores_per_replica": None}


def test_a_slice_may_come_in_two_forms():
    one, two = TpuSpec.parse("v5e:2x4"), TpuSpec.parse("v5e:2x4", hosts=2)
    assert one.tpu_slice.gke_machine_type == "ct5lp-hightpu-8t"
    assert one.resource_limits() == {"google.com/tpu": 8}
    assert two.tpu_slice.gke_machine_type == "ct5lp-hightpu-4t"
    assert two.resource_limits() == {"google.com/tpu": 4}


def test_what_gke_is_told():
    spec = TpuSpec.parse("v5e:4x4", spot=True, zone="us-central1-a")
    assert spec.node_selector() == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-spot": "true",
        "topology.kubernetes.io/zone": "us-central1-a",
    }
    reserved = TpuSpec.parse("v6e:1x1", reservation="ours")
    assert reserved.node_selector()["cloud.google.com/reservation-name"] == "ours"
    assert reserved.node_selector()["cloud.google.com/reservation-affinity"] == "specific"
    assert reserved.tolerations() == TpuSpec.parse("v6e:1x1").tolerations() == []


@pytest.mark.parametrize(
    ("way", "key"),
    [("spot", "cloud.google.com/gke-spot"), ("flex_start", "cloud.google.com/gke-flex-start")],
)
def test_a_pod_is_put_on_nodes_that_are_had_in_that_way(way, key):
    spec = TpuSpec.parse("v5e:2x4", **{way: True})
    added = spec.node_selector().items() - TpuSpec.parse("v5e:2x4").node_selector().items()
    assert added == {(key, "true")}
    assert spec.tolerations() == [
        {"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    ]
    assert TpuSpec.read(spec.to_json()) == spec


@row(
    "runners",
    "a `v4:2x2x1` of `flex_start` on GKE",
    "flex_start=True: GKE has no flex-start nodes with v4:2x2x1: use v5e or newer, or leave",
)
def test_flex_start_needs_newer_chips(refused):
    with refused(ValueError):
        TpuSpec.parse("v4:2x2x1", flex_start=True).node_selector()


@row(
    "runners",
    "a `v2:2x2` on GKE",
    "GKE has no nodes with v2:2x2: use v3 or newer, or Vertex AI with machine type 'cloud-tpu'",
)
def test_a_slice_that_gke_has_not_is_refused(refused):
    with refused(ValueError):
        TpuSpec.parse("v2:2x2").node_selector()


def test_what_vertex_is_told():
    assert TpuSpec.parse("v5e:2x2").vertex_machine_spec() == {
        "machine_type": "ct5lp-hightpu-4t",
        "tpu_topology": "2x2",
    }
    assert TpuSpec.parse("v3:2x2").vertex_machine_spec() == {
        "machine_type": "cloud-tpu",
        "accelerator_type": "TPU_V3",
        "accelerator_count": 8,
    }


@row(
    "runners",
    "a `v4:2x2x1` on Vertex AI",
    "Vertex AI has no machines with v4:2x2x1: use v2, v3",
    "or GKE with machine type 'ct4p",
)
def test_a_slice_that_vertex_has_not_is_refused(refused):
    with refused(ValueError):
        TpuSpec.parse("v4:2x2x1").vertex_machine_spec()


def refusal(name, options, *says):
    given = ", ".join([repr(name), *(f"{key}={value!r}" for key, value in options.items())])
    return case("component", f"`TpuSpec.parse({given})`", *says, values=(name, options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        refusal("v7:2x4", {}, "'v7:2x4': unknown generation 'v7'; use one of v2, v3"),
        refusal("v5e:3x3", {}, "v5e has no slice '3x3'; nearest: v5e:2x4 (8 chips)"),
        refusal("v5e:10", {}, "no slice '10'; nearest: v5e:2x4 (8 chips)"),
        refusal("v5e:²", {}, "no slice '²'; nearest: v5e:"),
        refusal("v5e:2x4x", {}, "no slice '2x4x'; nearest: v5e:2x4, v5e:4x8, v5e:4x4."),
        refusal("v4:big", {}, "v4 has no slice 'big'; nearest: v4:"),
        refusal("v5e", {}, "v5e has no slice ''; nearest: v5e:"),
        refusal("", {}, "TpuSpec slice_name='': give a name such as 'v5e:2x4'"),
        refusal("v5e:2x4", {"hosts": 4}, "no form with 4 hosts, only with 1 or 2"),
        refusal(
            "v5e:2x4",
            {"spot": True, "reservation": "r"},
            "spot=True and reservation='r' exclude each other: leave one out",
        ),
        refusal(
            "v5e:2x4",
            {"spot": True, "flex_start": True},
            "spot=True and flex_start=True exclude each other: leave one out",
        ),
        refusal("v5e:2x4", {"flex_start": 1}, "flex_start=1: Input should be a valid boolean"),
        refusal("v5e:2x4", {"reservation": ""}, "TpuSpec reservation='': leave it out"),
        refusal("v5e:2x4", {"hosts": 0}, "hosts=0: Input should be greater than 0"),
        refusal(
            "v5e:2x4", {"zones": "a"}, "zones='a': unknown attribute; use slice_name, hosts, spot"
        ),
        refusal("v5e:2x4", {"spot": "yes"}, "spot='yes': Input should be a valid boolean"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(name, options, refused):
    with refused(ValueError):
        TpuSpec.parse(name, **options)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        case(
            "component",
            "60 rows on a `v5e:2x4`",
            "train_batch_size 60 must be divisible by the 8 replicas of v5e:2x4: 56 or 64 would be",
            values=(60, {"name": "train_batch_size"}),
        ),
        case(
            "component",
            "3 rows on a `v5e:2x4`",
            "batch size 3 must be divisible by the 8 replicas of v5e:2x4: 8 would be",
            values=(3, {}),
        ),
        case(
            "component",
            "`num_cores_per_replica=16` on a `v5e:2x4`",
            "num_cores_per_replica=16 is more than the 8 TPU devices of v5e:2x4",
            "use a larger slice, or at most 8",
            values=(64, {"num_cores_per_replica": 16}),
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(rows, named, refused):
    with refused(ValueError):
        TpuSpec.parse("v5e:2x4").check_batch_size(rows, **named)


def test_batches_and_replicas_must_fit():
    spec = TpuSpec.parse("v5e:2x4")
    spec.check_batch_size(64)
    spec.check_batch_size(6, num_cores_per_replica=4)
    assert spec.num_replicas(4) == 2
    assert TpuSpec.parse("v3:4x4").tpu_config(2) == {"num_shards": 16, "num_cores_per_replica": 2}


def test_a_spec_is_read_in_every_form_that_it_is_written_in():
    spec = TpuSpec.parse("v5e:2x4", spot=True)
    assert spec.to_json() == '{"slice_name":"v5e:2x4","spot":true}'
    for form in (spec, spec.to_json(), {"slice_name": "v5e:2x4", "spot": True}):
        assert TpuSpec.read(form) == spec
    assert TpuSpec.read("v5e:2x4") == TpuSpec.parse("v5e:2x4")


@pytest.mark.parametrize(
    "form",
    [
        case("component", f"`tpu={shown}`", *says, values=(form,))
        for form, shown, *says in (
            ("{", "'{'", "TPU '{' is not valid JSON (", "give a slice such as v5e:2x4"),
            (
                '{"a":' * 10_000,
                '{"a":{"a":..., 10,000 deep',
                "is not valid JSON (maximum recursion",
                "give a slice such as v5e:2x4",
            ),
            (
                {"spot": True},
                "{'spot': True}",
                "TPU {'spot': True} names no slice: give a name such as 'v5e",
            ),
            (8, "8", "TPU 8 names no slice: give a name such as 'v5e:2x4'"),
            ("v9:1x1", "'v9:1x1'", "unknown generation 'v9'; use one of v2, v3"),
            (
                '{"slice_name": "v5e:2x4", "zones": 1}',
                '{"slice_name": "v5e:2x4", "zones": 1}',
                "zones=1: unknown attribute; use slice_name, hosts, spot",
            ),
        )
    ],
)
def test_what_is_no_form_of_a_spec_is_refused(form, refused):
    with refused(ValueError):
        TpuSpec.read(form)


def test_a_number_of_shards_must_be_the_slices():
    spec = TpuSpec.parse("v5e:2x4")
    for shards, cores in ((None, None), (8, None), (2, 4), (None, 8)):
        spec.check_num_shards(shards, num_cores_per_replica=cores)


@pytest.mark.parametrize(
    ("shards", "cores"),
    [
        case(
            "component",
            "`num_shards=4` and `tpu='v5e:2x4'`",
            "num_shards=4 contradicts tpu='v5e:2x4', which has 8 replicas: leave num_shards out",
            values=(4, None),
        ),
        case(
            "component",
            "`num_shards=8`, `num_cores_per_replica=4` and `tpu='v5e:2x4'`",
            "num_shards=8 contradicts tpu='v5e:2x4', which has 2 replicas of 4 cores each: leave",
            values=(8, 4),
        ),
    ],
)
def test_another_number_of_shards_is_refused(shards, cores, refused):
    with refused(ValueError):
        TpuSpec.parse("v5e:2x4").check_num_shards(shards, num_cores_per_replica=cores)


def test_a_spec_does_not_change():
    spec = TpuSpec.parse("v5e:2x4")
    with pytest.raises(ValueError, match="frozen"):
        spec.spot = True
    assert TpuSpec.model_validate_json(spec.model_dump_json()) == spec
    assert find_slice("v5e:2x4") == spec.tpu_slice


def test_it_needs_no_tensorflow():
    program = (
        "import sys; import tfx_tpu_trainer.hardware; "
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'tfx')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_chips_of_the_docs_are_those_of_the_table():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "preflight.md").read_text(encoding="utf-8")
    for chip in CHIPS.values():
        network = f"{chip.dcn_gbit_per_s:g} Gbit/s" if chip.dcn_gbit_per_s else "-"
        line = (
            f"| {chip.generation} | {chip.devices} | {chip.hbm_gib} GiB | {chip.program_hbm_gib} GiB | "
            f"{chip.bf16_tflops:g} TFLOP/s | {chip.hbm_gb_per_s:g} GB/s | {chip.ici_gb_per_s:g} GB/s | {network} |"
        )
        assert line in page

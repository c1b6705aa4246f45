from __future__ import annotations

import math
import subprocess
import sys

import pytest

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
    reserved = TpuSpec.parse("v6e:1x1", reservation="ours").node_selector()
    assert reserved["cloud.google.com/reservation-name"] == "ours"
    assert reserved["cloud.google.com/reservation-affinity"] == "specific"
    with pytest.raises(ValueError, match=r"GKE has no nodes with v2:2x2.*Vertex.*cloud-tpu"):
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
    with pytest.raises(ValueError, match=r"Vertex AI has no machines with v4:2x2x1.*ct4p"):
        TpuSpec.parse("v4:2x2x1").vertex_machine_spec()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("v7:2x4", {}, r"'v7:2x4': there is no generation 'v7'; use one of v2, v3"),
        ("v5e:3x3", {}, r"v5e has no slice '3x3'; nearest: v5e:2x4 \(8 chips\)"),
        ("v5e:10", {}, r"no slice '10'; nearest: v5e:2x4 \(8 chips\)"),
        ("v4:big", {}, r"v4 has no slice 'big'; nearest: v4:"),
        ("v5e", {}, r"v5e has no slice ''"),
        ("v5e:2x4", {"hosts": 4}, r"no form of 4 hosts, but of 1 or 2"),
        ("v5e:2x4", {"spot": True, "reservation": "r"}, r"spot=True and reservation='r' exclude"),
        ("v5e:2x4", {"hosts": 0}, r"hosts=0: Input should be greater than 0"),
        ("v5e:2x4", {"zones": "a"}, r"zones='a': Extra inputs are not permitted"),
        ("v5e:2x4", {"spot": "yes"}, r"spot='yes': Input should be a valid boolean"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(name, options, says):
    with pytest.raises(ValueError, match=says):
        TpuSpec.parse(name, **options)


def test_batches_and_replicas_must_fit():
    spec = TpuSpec.parse("v5e:2x4")
    spec.check_batch_size(64)
    with pytest.raises(ValueError, match=r"train_batch_size 60 .* 8 replicas .*: 56 or 64 would"):
        spec.check_batch_size(60, name="train_batch_size")
    with pytest.raises(ValueError, match=r"batch size 3 must be divisible .*: 8 would be"):
        spec.check_batch_size(3)
    spec.check_batch_size(6, num_cores_per_replica=4)
    assert spec.num_replicas(4) == 2
    assert TpuSpec.parse("v3:4x4").tpu_config(2) == {"num_shards": 16, "num_cores_per_replica": 2}
    with pytest.raises(
        ValueError, match=r"num_cores_per_replica=16 .* 8 TPU devices .*\[1, 2, 4, 8\]"
    ):
        spec.num_replicas(16)


def test_a_spec_is_read_in_every_form_that_it_is_written_in():
    spec = TpuSpec.parse("v5e:2x4", spot=True)
    assert spec.to_json() == '{"slice_name":"v5e:2x4","spot":true}'
    for form in (spec, spec.to_json(), {"slice_name": "v5e:2x4", "spot": True}):
        assert TpuSpec.read(form) == spec
    assert TpuSpec.read("v5e:2x4") == TpuSpec.parse("v5e:2x4")
    for form, says in (
        ("{", "is no valid JSON"),
        ({"spot": True}, "names no slice: give one as 'v5e:2x4'"),
        (8, "TPU 8 names no slice"),
        ("v9:1x1", "there is no generation 'v9'"),
        ('{"slice_name": "v5e:2x4", "zones": 1}', "zones=1: Extra inputs"),
    ):
        with pytest.raises(ValueError, match=says):
            TpuSpec.read(form)


def test_a_number_of_shards_must_be_the_slices():
    spec = TpuSpec.parse("v5e:2x4")
    for shards, cores in ((None, None), (8, None), (2, 4), (None, 8)):
        spec.check_num_shards(shards, num_cores_per_replica=cores)
    with pytest.raises(ValueError, match=r"num_shards=4 contradicts tpu='v5e:2x4', .* 8 replicas:"):
        spec.check_num_shards(4)
    with pytest.raises(ValueError, match=r"num_shards=8 .* has 2 replicas of 4 cores each: leave"):
        spec.check_num_shards(8, num_cores_per_replica=4)


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

from __future__ import annotations

import pytest

from tests.bad_input import row
from tfx_tpu_trainer.estimator.tpu.cores.layout import (
    BatchSizes,
    CoreLayout,
    InputMode,
    RowSlice,
    batch_sizes,
    number_of_sources,
    row_slices,
)


@pytest.mark.parametrize(
    ("replicas", "cores", "hosts"),
    [(1, 1, 1), (8, 1, 1), (9, 1, 2), (16, 1, 2), (4, 4, 2), (64, 2, 16)],
)
def test_hosts_have_eight_cores(replicas, cores, hosts):
    assert CoreLayout(replicas, cores).num_hosts == hosts
    assert CoreLayout(replicas, cores, one_host=True).num_hosts == 1
    assert CoreLayout(replicas, cores, one_host=True).replicas_per_host == replicas


@pytest.mark.parametrize("given", [0, 7, "PER_HOST_V2", [2]])
@row(
    "estimator",
    "`TPUConfig(per_host_input_for_training=7)`, on cores",
    "per_host_input_for_training=",
    "is not one of InputPipelineConfig; give PER_SHARD_V1 (1), PER_HOST_V1 (2), ",
)
def test_no_other_way_of_the_input_is_taken(given, refused):
    with refused(ValueError):
        InputMode(given)


def test_replicas_that_do_not_spread_evenly_are_refused():
    with pytest.raises(
        ValueError, match="9 replicas of 1 cores can't be spread evenly over 2 hosts"
    ):
        _ = CoreLayout(9).replicas_per_host


@pytest.mark.parametrize(
    ("mode", "sizes", "calls"),
    [
        (InputMode.PER_SHARD_V1, (4, 4), 16),
        (InputMode.PER_HOST_V1, (32, 4), 2),
        (InputMode.PER_HOST_V2, (4, 4), 2),
        (InputMode.BROADCAST, (64, 64), 1),
        (InputMode.SLICED, (64, 4), 1),
    ],
)
@pytest.mark.behaviour(73, 75, 76, 77, 78)
def test_batch_sizes_and_calls(mode, sizes, calls):
    assert batch_sizes(mode, CoreLayout(16), 64) == BatchSizes(*sizes)
    assert number_of_sources(mode, CoreLayout(16)) == calls


@pytest.mark.behaviour(128)
def test_a_hosts_batch_is_cut_into_pieces_in_order():
    slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(16))
    assert slices[:2] == (RowSlice(0, 0, 0, 8), RowSlice(0, 0, 1, 8))
    assert slices[8] == RowSlice(1, 0, 0, 8)


@pytest.mark.behaviour(129)
def test_elements_go_round_robin_to_a_hosts_replicas():
    slices = row_slices(InputMode.PER_HOST_V2, CoreLayout(16))
    assert slices[1] == RowSlice(0, 1, 0, 1)
    assert slices[9] == RowSlice(1, 1, 0, 1)


@pytest.mark.behaviour(130, 131, 77)
def test_slices_of_the_other_modes():
    layout = CoreLayout(2)
    assert row_slices(InputMode.SLICED, layout) == (RowSlice(0, 0, 0, 2), RowSlice(0, 0, 1, 2))
    assert row_slices(InputMode.PER_SHARD_V1, layout) == (
        RowSlice(0, 0, 0, 1),
        RowSlice(1, 0, 0, 1),
    )
    assert row_slices(InputMode.BROADCAST, layout) == (RowSlice(0, 0, 0, 1),) * 2

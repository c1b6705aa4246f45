"""How much memory is available, on a machine and in a container; and what goes back to it."""

from __future__ import annotations

import pytest

from tests.freed_blocks import blocks_freed_but_held, needs_glibc
from tfx_tpu_trainer._support.free_memory import available_memory, return_freed_memory

MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"}
V2 = "sys/fs/cgroup/memory"
V1 = "sys/fs/cgroup/memory/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8000 * 1024),
        ({f"{V2}.max": "max\n", f"{V2}.current": "100\n"}, 8000 * 1024),
        ({f"{V2}.max": "5000\n", f"{V2}.current": "3000\n"}, 2000),
        (
            {
                f"{V2}.max": "5000\n",
                f"{V2}.current": "3000\n",
                f"{V2}.stat": "anon 1\ninactive_file 700\n",
            },
            2700,
        ),
        ({f"{V1}.limit_in_bytes": "9223372036854771712\n"}, 8000 * 1024),
        (
            {
                f"{V1}.limit_in_bytes": "5000\n",
                f"{V1}.usage_in_bytes": "4000\n",
                f"{V1}.stat": "inactive_file 1\ntotal_inactive_file 300\n",
            },
            1300,
        ),
        ({f"{V2}.max": "5000\n", f"{V2}.current": "6000\n"}, 0),
    ],
)
def test_it_is_what_the_machine_and_the_container_leave(tmp_path, files, expected):
    for name, text in {**MACHINE, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_memory(str(tmp_path)) == expected


def test_a_machine_that_says_nothing_has_none(tmp_path):
    assert available_memory(str(tmp_path)) == 0


def test_this_machine_has_some():
    assert available_memory() > 1 << 20


@needs_glibc
def test_freed_blocks_below_one_that_is_held_go_back_to_the_system():
    with blocks_freed_but_held(megabytes=120) as resident_kib:
        held = resident_kib()
        return_freed_memory()
        assert held - resident_kib() > 100_000

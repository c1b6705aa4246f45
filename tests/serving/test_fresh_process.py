from __future__ import annotations

import pytest

from tfx_tpu_trainer.serving.fresh_process import FreshProcessError, run_fresh

MODULE = "tests.serving.ends_badly"


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("killed", "its process was killed by SIGKILL"),
        ("raises", "ValueError: the reason"),
        ("silent", "its process ended with exit code 3"),
    ],
)
def test_a_bad_end_has_a_reason_of_one_line(way, reason):
    with pytest.raises(FreshProcessError) as caught:
        run_fresh(MODULE, [way], timeout_seconds=60)
    assert str(caught.value) == reason


def test_a_good_end_says_nothing(capfd):
    run_fresh(MODULE, ["well"], timeout_seconds=60)
    assert capfd.readouterr() == ("", "")

"""An estimator on the host or on emulated cores, for tests of what holds on both."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

on_host_and_cores = pytest.mark.parametrize("place", ["host", "cores"])
# Where the two go the same way, one of them is enough for most days.
on_host_mostly = mostly_swept("place", ["host", "cores"], kept=["host"])
on_cores_mostly = mostly_swept("place", ["host", "cores"], kept=["cores"])
_AT_ONCE = [("host", "train"), ("cores", "eval")]
in_two_modes = pytest.mark.parametrize(("place", "mode"), _AT_ONCE)
in_every_mode = pytest.mark.parametrize(
    ("place", "mode"),
    [
        *_AT_ONCE,
        *(
            pytest.param(*pair, marks=pytest.mark.sweep)
            for pair in [
                ("host", "eval"),
                ("host", "infer"),
                ("cores", "train"),
                ("cores", "infer"),
            ]
        ),
    ],
)


def estimator(
    folder: Any, place: str, model_fn: Callable[..., Any] | None = None, **options: Any
) -> tpu.TPUEstimator:
    """The linear model, or another one."""
    model_fn = model_fn or linear_model.model_fn_for(tpu)
    return on_cores.make(folder, model_fn, use_tpu=place == "cores", **options)

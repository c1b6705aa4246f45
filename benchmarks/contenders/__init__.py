"""Lists the contenders, without importing TensorFlow, since the command reads it before any is chosen."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.plan import OF_REAL_SIZE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to train a model.

    Attributes:
        title: Its name in tables.
        module: Module with a function `make(request, **options)`, which returns the object that `benchmarks.measure`
            drives.
        options: Options of `make`.
        of_original: Whether it runs in the original's environment (TensorFlow 2.15.1) instead of ours.
        legacy_keras: Whether `TF_USE_LEGACY_KERAS=1` is set, which programs of its kind need.
        models: The models on which it is measured; `None` for all.
        activities: The measured activities after the first step: of `"train"`, `"evaluate"` and `"predict"`.
        of_real_size: Whether it is also measured on the models of real size.
    """

    title: str
    module: str
    options: Mapping[str, Any] = MappingProxyType({})
    of_original: bool = False
    legacy_keras: bool = True
    models: tuple[str, ...] | None = None
    activities: tuple[str, ...] = ("train", "evaluate", "predict")
    of_real_size: bool = False

    def runs(self, model: str) -> bool:
        """Returns whether it is measured on a model."""
        if self.models is None:
            return self.of_real_size or model not in OF_REAL_SIZE
        return model in self.models


CONTENDERS = {
    "real": Contender(
        title="the real TPUEstimator",
        module="benchmarks.contenders.estimators",
        options={"original": True},
        of_original=True,
        # Its environment has TensorFlow's own Keras 2.
        legacy_keras=False,
        of_real_size=True,
    ),
    "ours": Contender(
        title="ours, on the host", module="benchmarks.contenders.estimators", of_real_size=True
    ),
    "bare": Contender(title="a bare loop", module="benchmarks.contenders.loops"),
    "ours-compiled": Contender(
        title="ours, jit_compile=True",
        module="benchmarks.contenders.estimators",
        options={"jit_compile": True},
        # XLA's convolutions on a CPU take a second per step: the CNN would take longer than all others.
        models=("mlp", "wide_and_deep"),
        activities=("train",),
    ),
    "ours-auto": Contender(
        title='ours, jit_compile="auto"',
        module="benchmarks.contenders.estimators",
        options={"jit_compile": "auto"},
        activities=("train",),
    ),
    "keras3": Contender(
        title="Keras 3 fit",
        module="benchmarks.contenders.keras_fit",
        options={"package": "keras"},
        legacy_keras=False,
        of_real_size=True,
    ),
    "keras3-loop": Contender(
        title="Keras 3 fit, 25 steps a call",
        module="benchmarks.contenders.keras_fit",
        # Keras 3.6 unrolls the loop, and TensorFlow allows at most 32 batches in one function.
        options={"package": "keras", "steps_per_execution": 25},
        legacy_keras=False,
    ),
    "tf_keras": Contender(
        title="tf_keras fit",
        module="benchmarks.contenders.keras_fit",
        options={"package": "tf_keras"},
    ),
    "tf_keras-loop": Contender(
        title="tf_keras fit, 100 steps a call",
        module="benchmarks.contenders.keras_fit",
        options={"package": "tf_keras", "steps_per_execution": 100},
    ),
    "ours-1-core": Contender(
        title="ours, 1 emulated core",
        module="benchmarks.contenders.estimators",
        options={"cores": 1},
        activities=("train",),
    ),
    "ours-2-cores": Contender(
        title="ours, 2 emulated cores",
        module="benchmarks.contenders.estimators",
        options={"cores": 2},
        models=tuple(OF_REAL_SIZE),
        activities=("train",),
    ),
    "ours-8-cores": Contender(
        title="ours, 8 emulated cores",
        module="benchmarks.contenders.estimators",
        options={"cores": 8},
        activities=("train",),
    ),
    "ours-64-cores": Contender(
        title="ours, 64 emulated cores",
        module="benchmarks.contenders.estimators",
        options={"cores": 64},
        models=("mlp",),
        activities=(),
    ),
    "input": Contender(
        title="the input alone",
        module="benchmarks.contenders.loops",
        options={"trains": False},
    ),
}
BASELINE = "real"

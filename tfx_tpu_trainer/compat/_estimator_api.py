"""The modules `tf.estimator` and `tf.compat.v1.estimator`, with the original's names only."""

from __future__ import annotations

import types

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat._alias_module import make_module
from tfx_tpu_trainer.compat._original_names import EXPORT_NAMES, NAMES, TPU_NAMES


def estimator_modules(version: str) -> dict[str, types.ModuleType]:
    """Makes the modules of one of the API's versions."""
    ours = estimator if version == "v2" else estimator.v1
    root = "tensorflow.estimator" if version == "v2" else "tensorflow.compat.v1.estimator"
    names: dict[str, tuple[types.ModuleType, tuple[str, ...]]] = {
        "": (ours, tuple(NAMES)),
        "experimental": (ours.experimental, tuple(ours.experimental.__all__)),
        "export": (estimator.export, EXPORT_NAMES),
    }
    if version == "v1":
        names["inputs"] = (estimator.inputs, tuple(estimator.inputs.__all__))
        names["tpu"] = (estimator.tpu, TPU_NAMES)
        names["tpu.experimental"] = (estimator.tpu.experimental, ("EmbeddingConfigSpec",))
    modules = {
        below: make_module(
            f"{root}.{below}".rstrip("."),
            {name: getattr(source, name) for name in wanted},
            doc=f"`{source.__name__}` under its name in TensorFlow up to 2.15.",
        )
        for below, (source, wanted) in names.items()
    }
    for below, module in modules.items():
        if below:
            above, _, name = below.rpartition(".")
            setattr(modules[above], name, module)
            vars(modules[above])["__all__"].append(name)
    return modules

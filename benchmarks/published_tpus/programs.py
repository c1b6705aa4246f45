"""Defines the programs for the published steps, and compiles them."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from benchmarks.published_tpus.models import Decoder, decoder_layer, resnet, vision_transformer
from tfx_tpu_trainer.preflight._compiling import CompilerOptions, compile_steps
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs, lower_engine_step
from tfx_tpu_trainer.preflight._hlo_cost import OpCost

CACHE = pathlib.Path(__file__).parents[2] / ".make" / "published_tpus"
"""The compiled programs, one file each."""

# A fast compilation: half a minute of processor time for ResNet-50, instead of minutes.
_EFFORT = -1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A step to compile."""

    # The smallest slice with the replicas.
    slice_name: str
    replicas: int
    rows: int
    # `"resnet"`, `"resnet_rs"`, `"vit"` or `"decoder"`.
    kind: str
    # Width and height of the images.
    image: int | None = None
    decoder: Decoder | None = None

    def model(self) -> tuple[Any, Any]:
        """Returns the model_fn and the specs of its features and labels."""
        if self.decoder is not None:
            shape = self.decoder
            hidden = tf.TensorSpec([shape.length, shape.width], tf.bfloat16)
            return decoder_layer(shape), ({"hidden": hidden}, None)
        specs = ({"image": tf.TensorSpec([self.image, self.image, 3])}, tf.TensorSpec([], tf.int32))
        if self.kind == "vit":
            return vision_transformer(width=384, layers=12, heads=6, patch=16), specs
        return resnet(rs=self.kind == "resnet_rs"), specs


def _image(kind: str, slice_name: str, size: int, rows: int, replicas: int = 8) -> Program:
    return Program(slice_name=slice_name, replicas=replicas, rows=rows, kind=kind, image=size)


def _layer(slice_name: str, **shape: Any) -> Program:
    decoder = Decoder(**shape)
    return Program(
        slice_name=slice_name,
        replicas=1,
        rows=decoder.rows * decoder.tensor_parallel,
        kind="decoder",
        decoder=decoder,
    )


# Their global_parameter_scale doubles heads and hidden columns, the width and the layers in turn.
_MAXTEXT = {"head_size": 256, "length": 2048}
_FULL = {"recomputed": 1.0, "recomputes_attention": True}
_MINIMAL = {"recomputed": 0.0, "recomputes_attention": False}
# The products of the MLP's first half, and of the attention's end, are computed again.
_LLAMA = {"head_size": 128, "key_heads": 8, "recomputes_attention": True, "layers": 80}
_LLAMA_70B = {**_LLAMA, "width": 8192, "heads": 64, "hidden": 28672, "recomputed": 0.63}

_V5E = {**_MAXTEXT, **_FULL, "heads": 64, "key_heads": 64, "hidden": 28672}
_V5P = {**_MAXTEXT, **_MINIMAL}
_SMALL = {"heads": 64, "key_heads": 64, "hidden": 28672}
_LARGE = {"heads": 128, "key_heads": 128, "hidden": 57344, "layers": 64}

PROGRAMS: Mapping[str, Program] = {
    "resnet_rs_160": _image("resnet_rs", "v3:2x2", 160, 128),
    "llama_8b": _layer(
        "v6e:1x1",
        **{**_LLAMA, "layers": 32},
        width=4096,
        heads=32,
        hidden=14336,
        recomputed=0.54,
        vocabulary=128_256,
        length=8192,
        rows=3,
    ),
    "maxtext_16b_v5e": _layer("v5e:1x1", **_V5E, width=4096, layers=32, rows=6),
    "maxtext_32b_v5p": _layer(
        "v5p:2x2x1", **_V5P, **_SMALL, width=8192, layers=32, rows=7, tensor_parallel=4
    ),
    "maxtext_22b_v4": _layer(
        "v4:2x2x1",
        **_MAXTEXT,
        **_FULL,
        width=6144,
        layers=48,
        heads=24,
        key_heads=24,
        hidden=24576,
        rows=13,
    ),
    "resnet_rs_256": _image("resnet_rs", "v3:2x2", 256, 128),
    "resnet_50_v3_128": _image("resnet", "v3:2x2", 224, 128),
    "llama_70b_5": _layer("v6e:1x1", **_LLAMA_70B, vocabulary=128_256, length=8192, rows=5),
    "maxtext_32b_v5e": _layer("v5e:1x1", **_V5E, width=8192, layers=32, rows=4),
    "maxtext_64b_v5p": _layer(
        "v5p:2x2x1", **_V5P, **_SMALL, width=8192, layers=64, rows=3, tensor_parallel=4
    ),
    "vit_s16": _image("vit", "v3:2x2", 224, 128),
    "maxtext_64b_v5e": _layer("v5e:1x1", **_V5E, width=8192, layers=64, rows=2),
    "maxtext_128b_v5p": _layer(
        "v5p:2x2x1", **_V5P, **_LARGE, width=8192, rows=1, tensor_parallel=8
    ),
    "llama_70b_2": _layer("v6e:1x1", **_LLAMA_70B, vocabulary=128_256, length=8192, rows=2),
    # Two rows per chip, according to its tokens per second and its seconds; its options say three.
    "llama2_70b": _layer("v6e:1x1", **_LLAMA_70B, length=4096, rows=2),
    "gpt3_175b": _layer(
        "v6e:1x1",
        **_FULL,
        width=12288,
        layers=96,
        heads=96,
        key_heads=96,
        head_size=128,
        hidden=49152,
        gated=False,
        vocabulary=50_304,
        length=2048,
        rows=3,
    ),
    "resnet_50_v2_32": _image("resnet", "v2:4x4", 224, 32, 32),
    "maxtext_256b_v5p": _layer(
        "v5p:2x2x1", **_V5P, **_LARGE, width=16384, rows=1, tensor_parallel=8
    ),
    "maxtext_128b_v5e": _layer(
        "v5e:1x1", **_MAXTEXT, **_MINIMAL, **_LARGE, width=8192, rows=1, tensor_parallel=16
    ),
}
"""Key -> program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """The compiler's results for a program."""

    need_bytes: int
    limit_bytes: int
    costs: tuple[OpCost, ...]


def compiled(key: str) -> Compiled:
    """Compiles a program, or reads an earlier run's results."""
    path = CACHE / f"{key}.json"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_compile(PROGRAMS[key])))
    values = json.loads(path.read_text())
    costs = tuple(OpCost(**each) for each in values.pop("costs"))
    return Compiled(**values, costs=costs)


def _compile(program: Program) -> dict[str, Any]:
    model_fn, (features, labels) = program.model()
    step = lower_engine_step(
        model_fn,
        input_fn_of_specs(features, labels),
        "train",
        batch_size=program.rows * program.replicas,
        num_replicas=program.replicas,
    )
    if program.replicas == 1:
        # The smallest slices of v4 and v5p have four chips; serving programs run on one.
        step = dataclasses.replace(step, name="serve:layer")
    options = CompilerOptions(effort=_EFFORT, timeout_seconds=3600.0)
    (made,) = compile_steps([step], program.slice_name, options)
    if made.problem is not None:
        raise RuntimeError(str(made.problem))
    return {
        "need_bytes": made.need_bytes,
        "limit_bytes": made.limit_bytes,
        "costs": [dataclasses.asdict(each) for each in made.costs],
    }

"""Lists published training speeds of TensorFlow and JAX models on named TPUs, each with its source."""

import dataclasses

from benchmarks.published_tpus.models import RESNET_BLOCKS

_RESNET_RS = "tensorflow/tpu, models/official/resnet/resnet_rs/README.md (2021)"
_FLAX = "google/flax, examples/imagenet/README.md (2022)"
_BIG_VISION = "google-research/big_vision, big_vision/configs/vit_s16_i1k.py (2022)"
_MAXTEXT_V4 = "AI-Hypercomputer/maxtext, MaxText/configs/v4/README.md (2023)"
_MAXTEXT_V5E = "AI-Hypercomputer/maxtext, MaxText/configs/v5e/README.md (2023)"
_MAXTEXT_V5P = "AI-Hypercomputer/maxtext, README.md, Runtime Performance Results (2024)"
_RECIPES = "AI-Hypercomputer/tpu-recipes, training/trillium/{}/README.md ({})"

IMAGENET_ROWS = 1_281_167
"""Rows of ImageNet's training split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A training's speed, as published."""

    model: str
    # Key of `programs.PROGRAMS`, for its step.
    program: str
    # A slice with the authors' number of chips.
    slice_name: str
    source: str
    # Exactly one of both; operations per second and chip are by the authors' own count, in 10^12.
    step_seconds: float | None = None
    chip_tflops: float | None = None
    # Whether the estimate's shares were fitted to it; otherwise it is held out for a test.
    fitted: bool = False
    # Blocks of a ResNet's groups, if the program is ResNet-50's.
    blocks: tuple[int, int, int, int] | None = None
    # Pixels of an image, relative to the program's images.
    pixels: float = 1.0


def _resnet_rs(depth: int, size: int, milliseconds: float, *, fitted: bool = False) -> Published:
    """A step of 128 images on each core of a v3, in bfloat16."""
    compiled = 160 if size < 200 else 256
    return Published(
        model=f"ResNet-RS-{depth}, {size} x {size}",
        program=f"resnet_rs_{compiled}",
        slice_name="v3:2x2",
        source=_RESNET_RS,
        step_seconds=milliseconds / 1e3,
        fitted=fitted,
        blocks=RESNET_BLOCKS[depth],
        pixels=(size / compiled) ** 2,
    )


def _resnet_50(slice_name: str, program: str, hours: float) -> Published:
    """125,100 steps of 1,024 images; the hours include the evaluations in between."""
    return Published(
        model="ResNet-50",
        program=program,
        slice_name=slice_name,
        source=_FLAX,
        step_seconds=hours * 3600 / 125_100,
    )


def _maxtext(
    size: str, program: str, slice_name: str, tflops: float, source: str, *, fitted: bool = False
) -> Published:
    return Published(
        model=f"MaxText {size}",
        program=program,
        slice_name=slice_name,
        source=source,
        chip_tflops=tflops,
        fitted=fitted,
    )


def _recipe(
    model: str,
    program: str,
    slice_name: str,
    seconds: float,
    place: tuple[str, int],
    *,
    fitted: bool = False,
) -> Published:
    return Published(
        model=model,
        program=program,
        slice_name=slice_name,
        source=_RECIPES.format(*place),
        step_seconds=seconds,
        fitted=fitted,
    )


PUBLISHED: tuple[Published, ...] = (
    _resnet_rs(50, 160, 70, fitted=True),
    _resnet_rs(101, 160, 120),
    _resnet_rs(101, 192, 170),
    _resnet_rs(152, 192, 240, fitted=True),
    _resnet_rs(152, 224, 320),
    _resnet_rs(152, 256, 410),
    _resnet_rs(200, 256, 570),
    _resnet_rs(270, 256, 780, fitted=True),
    _resnet_rs(350, 256, 1100),
    _resnet_rs(350, 320, 1630),
    _resnet_rs(420, 320, 2090),
    _resnet_50("v3:2x2", "resnet_50_v3_128", 4.4),
    _resnet_50("v2:4x4", "resnet_50_v2_32", 2.5),
    Published(
        # 90 epochs of 99 % of the rows in 6 to 7 hours: 6.5.
        model="ViT-S/16",
        program="vit_s16",
        slice_name="v3:2x2",
        source=_BIG_VISION,
        step_seconds=6.5 * 3600 / (90 * 0.99 * IMAGENET_ROWS / 1024),
    ),
    _maxtext("22B", "maxtext_22b_v4", "v4:4x4x4", 156, _MAXTEXT_V4, fitted=True),
    _maxtext("16B", "maxtext_16b_v5e", "v5e:16x16", 120, _MAXTEXT_V5E, fitted=True),
    _maxtext("32B", "maxtext_32b_v5e", "v5e:16x16", 132, _MAXTEXT_V5E),
    _maxtext("64B", "maxtext_64b_v5e", "v5e:16x16", 118, _MAXTEXT_V5E),
    _maxtext("128B", "maxtext_128b_v5e", "v5e:16x16", 110, _MAXTEXT_V5E),
    _maxtext("32B", "maxtext_32b_v5p", "v5p:4x4x4", 328, _MAXTEXT_V5P, fitted=True),
    _maxtext("64B", "maxtext_64b_v5p", "v5p:4x4x4", 323, _MAXTEXT_V5P),
    _maxtext("128B", "maxtext_128b_v5p", "v5p:4x4x8", 315, _MAXTEXT_V5P),
    _maxtext("128B", "maxtext_128b_v5p", "v5p:4x8x8", 315, _MAXTEXT_V5P),
    _maxtext("256B", "maxtext_256b_v5p", "v5p:8x8x8", 316, _MAXTEXT_V5P),
    _recipe(
        "Llama 3.1 8B",
        "llama_8b",
        "v6e:4x4",
        3.393,
        ("Llama3.1-8B-MaxText/v6e-16", 2025),
        fitted=True,
    ),
    _recipe("Llama 3.1 8B", "llama_8b", "v6e:4x8", 3.495, ("Llama3.1-8B-MaxText/v6e-32", 2025)),
    _recipe(
        "Llama 3.1 70B", "llama_70b_5", "v6e:16x16", 42.656, ("Llama3.1-70B-MaxText/v6e-256", 2025)
    ),
    _recipe(
        "Llama 3.1 70B", "llama_70b_2", "v6e:8x8", 18.688, ("Llama3.1-70B-MaxText/v6e-64", 2025)
    ),
    _recipe("Llama 2 70B", "llama2_70b", "v6e:16x16", 9.052, ("Llama2-70B-MaxText", 2025)),
    _recipe("GPT-3 175B", "gpt3_175b", "v6e:16x16", 17.182, ("GPT3-175B-MaxText/bf16", 2025)),
)
"""The results."""

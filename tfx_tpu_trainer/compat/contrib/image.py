"""Applies projective transforms to images."""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

__all__ = [
    "angles_to_projective_transforms",
    "compose_transforms",
    "rotate",
    "transform",
    "translate",
    "translations_to_projective_transforms",
]


def _rows(values: Any, name: str, rank: int) -> tf.Tensor:
    """Returns one value per image; a single value applies to all."""
    values = tf.convert_to_tensor(values, tf.float32)
    if values.shape.rank not in (rank - 1, rank):
        raise TypeError(f"{name} has rank {rank - 1} or {rank}; got the shape {values.shape}.")
    return values[tf.newaxis] if values.shape.rank < rank else values


def transform(
    images: Any,
    transforms: Any,
    interpolation: str = "NEAREST",
    output_shape: Any = None,
    name: str | None = None,
) -> tf.Tensor:
    """Transforms images: the output's pixel (x, y) is read at a transformed position of the input."""
    with v1.name_scope(name, "transform"):
        images = tf.convert_to_tensor(images)
        rank = images.shape.rank
        if rank not in (2, 3, 4):
            raise TypeError(f"images have rank 2, 3 or 4; got the shape {images.shape}.")
        batch = images[tf.newaxis] if rank < 4 else images
        batch = batch[..., tf.newaxis] if rank == 2 else batch
        size = tf.shape(batch)[1:3] if output_shape is None else output_shape
        made = tf.raw_ops.ImageProjectiveTransformV2(
            images=batch,
            transforms=_rows(transforms, "transforms", 2),
            output_shape=tf.cast(size, tf.int32),
            interpolation=interpolation.upper(),
        )
        if output_shape is None:
            made.set_shape(batch.shape)
        made = made[0] if rank < 4 else made
        return made[..., 0] if rank == 2 else made


def rotate(
    images: Any, angles: Any, interpolation: str = "NEAREST", name: str | None = None
) -> tf.Tensor:
    """Rotates images counterclockwise about their centres."""
    with v1.name_scope(name, "rotate"):
        images = tf.convert_to_tensor(images)
        first = 1 if images.shape.rank == 4 else 0
        height, width = tf.unstack(tf.cast(tf.shape(images)[first : first + 2], tf.float32))
        return transform(
            images, angles_to_projective_transforms(angles, height, width), interpolation
        )


def translate(
    images: Any, translations: Any, interpolation: str = "NEAREST", name: str | None = None
) -> tf.Tensor:
    """Translates images."""
    with v1.name_scope(name, "translate"):
        return transform(images, translations_to_projective_transforms(translations), interpolation)


def angles_to_projective_transforms(
    angles: Any, image_height: Any, image_width: Any, name: str | None = None
) -> tf.Tensor:
    """Returns the transforms of rotations."""
    with v1.name_scope(name, "angles_to_projective_transforms"):
        angles = _rows(angles, "angles", 1)
        cosine, sine = tf.cos(angles), tf.sin(angles)
        right, bottom = image_width - 1, image_height - 1
        x_offset = (right - (cosine * right - sine * bottom)) / 2.0
        y_offset = (bottom - (sine * right + cosine * bottom)) / 2.0
        zeros = tf.zeros_like(angles)
        return tf.stack([cosine, -sine, x_offset, sine, cosine, y_offset, zeros, zeros], 1)


def translations_to_projective_transforms(translations: Any, name: str | None = None) -> tf.Tensor:
    """Returns the transforms of translations."""
    with v1.name_scope(name, "translations_to_projective_transforms"):
        x, y = tf.unstack(_rows(translations, "translations", 2), 2, axis=1)
        ones, zeros = tf.ones_like(x), tf.zeros_like(x)
        return tf.stack([ones, zeros, -x, zeros, ones, -y, zeros, zeros], 1)


def compose_transforms(*transforms: Any) -> tf.Tensor:
    """Composes transforms; the first one is applied last to the output's pixels."""

    def matrices(flat: Any) -> tf.Tensor:
        flat = _rows(flat, "transforms", 2)
        return tf.reshape(tf.concat([flat, tf.ones_like(flat[:, :1])], 1), [-1, 3, 3])

    composed = matrices(transforms[0])
    for each in transforms[1:]:
        composed = tf.matmul(composed, matrices(each))
    flat = tf.reshape(composed, [-1, 9])
    return (flat / flat[:, 8:])[:, :8]

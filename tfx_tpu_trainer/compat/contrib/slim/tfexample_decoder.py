"""Decodes serialized `tf.train.Example`s into items, which handlers make from features."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.slim import data_decoder

v1 = tf.compat.v1

__all__ = [
    "BoundingBox",
    "Image",
    "ItemHandler",
    "ItemHandlerCallback",
    "SparseTensor",
    "TFExampleDecoder",
    "Tensor",
]

_Tensors = Mapping[str, Any]


def _dense(tensor: Any, default: Any = None) -> Any:
    if not isinstance(tensor, tf.SparseTensor):
        return tensor
    return tf.sparse.to_dense(tensor, default)


class ItemHandler(abc.ABC):
    """Makes one item from some features."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys if isinstance(keys, (tuple, list)) else [keys]

    @property
    def keys(self) -> Sequence[str]:
        """The keys of the features."""
        return self._keys

    @abc.abstractmethod
    def tensors_to_item(self, keys_to_tensors: _Tensors) -> Any:
        """Makes the item."""


class ItemHandlerCallback(ItemHandler):
    """Makes an item with a function."""

    def __init__(self, keys: Any, func: Callable[[_Tensors], Any]) -> None:
        super().__init__(keys)
        self._func = func

    def tensors_to_item(self, keys_to_tensors: _Tensors) -> Any:
        """Returns the function's result."""
        return self._func(keys_to_tensors)


class BoundingBox(ItemHandler):
    """Makes boxes from four features, `[boxes, 4]`."""

    def __init__(self, keys: Sequence[str] | None = None, prefix: str = "") -> None:
        names = ["ymin", "xmin", "ymax", "xmax"] if keys is None else list(keys)
        if len(names) != 4:
            raise ValueError(f"A BoundingBox has 4 keys; got {len(names)}: {names}.")
        super().__init__([prefix + name for name in names])

    def tensors_to_item(self, keys_to_tensors: _Tensors) -> tf.Tensor:
        """Returns the boxes."""
        sides = [keys_to_tensors[key] for key in self.keys]
        values = [each.values if isinstance(each, tf.SparseTensor) else each for each in sides]
        return tf.stack(values, 1)


class Tensor(ItemHandler):
    """Makes a tensor of a given shape from a feature."""

    def __init__(
        self,
        tensor_key: str,
        shape_keys: Any = None,
        shape: Any = None,
        default_value: Any = 0,
    ) -> None:
        if shape_keys and shape is not None:
            raise ValueError(
                f"A Tensor has shape_keys or a shape, not both: {shape_keys}, {shape}."
            )
        self._shape_keys = [shape_keys] if isinstance(shape_keys, str) else list(shape_keys or ())
        self._shape = shape
        self._default_value = default_value
        super().__init__([tensor_key, *self._shape_keys])

    def tensors_to_item(self, keys_to_tensors: _Tensors) -> tf.Tensor:
        """Returns the tensor."""
        tensor, shape = keys_to_tensors[self.keys[0]], self._shape
        if self._shape_keys:
            sizes = [_dense(keys_to_tensors[key]) for key in self._shape_keys]
            shape = tf.reshape(tf.stack(sizes), [-1])
        if isinstance(tensor, tf.SparseTensor):
            if shape is not None:
                tensor = tf.sparse.reshape(tensor, shape)
            return _dense(tensor, self._default_value)
        return tensor if shape is None else tf.reshape(tensor, shape)


class SparseTensor(ItemHandler):
    """Makes a sparse tensor from a feature of indices and one of values."""

    def __init__(
        self,
        indices_key: str | None = None,
        values_key: str | None = None,
        shape_key: str | None = None,
        shape: Any = None,
        densify: bool = False,
        default_value: Any = 0,
    ) -> None:
        self._shape_key, self._shape = shape_key, shape
        self._densify, self._default_value = densify, default_value
        keys = [indices_key or "indices", values_key or "values"]
        super().__init__([*keys, shape_key] if shape_key else keys)

    def tensors_to_item(self, keys_to_tensors: _Tensors) -> Any:
        """Returns the tensor."""
        places, values = (keys_to_tensors[key] for key in self.keys[:2])
        if self._shape_key:
            shape = _dense(keys_to_tensors[self._shape_key])
        else:
            shape = self._shape or places.dense_shape
        columns = [places.indices[:, :-1], tf.cast(places.values, tf.int64)[:, tf.newaxis]]
        tensor = tf.SparseTensor(tf.concat(columns, 1), values.values, shape)
        return _dense(tensor, self._default_value) if self._densify else tensor


class Image(ItemHandler):
    """Makes an image from its bytes."""

    def __init__(
        self,
        image_key: str | None = None,
        format_key: str | None = None,
        shape: Any = None,
        channels: int = 3,
        dtype: tf.DType = tf.uint8,
        repeated: bool = False,
        dct_method: str = "",
    ) -> None:
        super().__init__([image_key or "image/encoded", format_key or "image/format"])
        self._shape, self._channels, self._dtype = shape, channels, dtype
        self._repeated, self._dct_method = repeated, dct_method

    def tensors_to_item(self, keys_to_tensors: _Tensors) -> tf.Tensor:
        """Returns the image, or the images."""
        encoded, kind = (keys_to_tensors[key] for key in self.keys)
        if not self._repeated:
            return self._decoded(encoded, kind)
        return tf.map_fn(
            lambda each: self._decoded(each, kind), encoded, fn_output_signature=self._dtype
        )

    def _decoded(self, encoded: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        def jpeg() -> tf.Tensor:
            return tf.cast(
                tf.io.decode_jpeg(encoded, self._channels, dct_method=self._dct_method), self._dtype
            )

        def other() -> tf.Tensor:
            image = tf.io.decode_image(encoded, self._channels, expand_animations=False)
            return tf.cast(image, self._dtype)

        image = tf.cond(
            tf.logical_or(tf.equal(kind, "raw"), tf.equal(kind, "RAW")),
            lambda: tf.io.decode_raw(encoded, self._dtype),
            lambda: tf.cond(tf.io.is_jpeg(encoded), jpeg, other),
        )
        if self._shape is not None:
            return tf.reshape(image, self._shape)
        return tf.ensure_shape(image, [None, None, self._channels])


class TFExampleDecoder(data_decoder.DataDecoder):
    """Decodes a serialized `tf.train.Example` to items."""

    def __init__(
        self,
        keys_to_features: Mapping[str, Any],
        items_to_handlers: Mapping[str, ItemHandler],
    ) -> None:
        self._keys_to_features = keys_to_features
        self._items_to_handlers = items_to_handlers

    def list_items(self) -> list[str]:
        """Returns the items' names."""
        return list(self._items_to_handlers)

    def decode(self, data: Any, items: Sequence[str] | None = None) -> list[Any]:
        """Decodes an example."""
        example = tf.io.parse_single_example(data, dict(self._keys_to_features))
        made = []
        for item in items or self.list_items():
            handler = self._items_to_handlers[item]
            made.append(handler.tensors_to_item({key: example[key] for key in handler.keys}))
        return made

"""Makes vocabulary tables from words to ids and back, as `tf.contrib.lookup` did."""

from typing import Any, NamedTuple

import tensorflow as tf

v1 = tf.compat.v1

__all__ = [
    "HashTable",
    "HasherSpec",
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string_table_from_file",
]


class HasherSpec(NamedTuple):
    """Describes how out-of-vocabulary words are hashed into buckets.

    Attributes:
        hasher: The hash function; `"fasthash"` is supported.
        key: The key of a strong one; `None`.
    """

    hasher: str
    key: Any


FastHashSpec = HasherSpec("fasthash", None)


class HashTable(v1.lookup.StaticHashTable):
    """A table that is immutable once it is initialized."""

    def __init__(
        self,
        initializer: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        del shared_name
        super().__init__(initializer, default_value, name=name or "hash_table")

    @property
    def init(self) -> Any:
        """The op that initializes it."""
        return self.initializer


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = FastHashSpec,
    key_dtype: Any = tf.string,
    name: str | None = None,
    key_column_index: int = tf.lookup.TextFileIndex.WHOLE_LINE,
    value_column_index: int = tf.lookup.TextFileIndex.LINE_NUMBER,
    delimiter: str = "\t",
) -> Any:
    """Makes a table from the words of a file to their line numbers.

    It is initialized with the graph's tables, and the file is an asset of an export.
    """
    _check_vocabulary(vocabulary_file, vocab_size)
    with v1.name_scope(name, "string_to_index"):
        initializer = tf.lookup.TextFileInitializer(
            vocabulary_file,
            _key_type(key_dtype),
            key_column_index,
            tf.int64,
            value_column_index,
            vocab_size,
            delimiter,
        )
        return _to_index(initializer, num_oov_buckets, default_value, hasher_spec)


def index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = FastHashSpec,
    dtype: Any = tf.string,
    name: str | None = None,
) -> Any:
    """Makes a table from words to their positions in a list."""
    if mapping is None:
        raise ValueError("mapping must be a list of words; got None.")
    with v1.name_scope(name, "string_to_index"):
        words = tf.cast(tf.convert_to_tensor(mapping), _key_type(dtype))
        numbers = tf.range(tf.size(words, tf.int64), dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(words, numbers)
        return _to_index(initializer, num_oov_buckets, default_value, hasher_spec)


def _check_vocabulary(file: Any, size: int | None) -> None:
    if file is None or (isinstance(file, str) and not file):
        raise ValueError(f"vocabulary_file must be the path of a file; got {file!r}.")
    if size is not None and size < 1:
        raise ValueError(f"vocab_size must be 1 or more; got {size}.")


def _key_type(dtype: Any) -> tf.DType:
    dtype = tf.as_dtype(dtype)
    if dtype != tf.string and not dtype.is_integer:
        raise TypeError(f"A vocabulary has strings or integers; got {dtype!r}.")
    return dtype if dtype == tf.string else tf.int64


def _to_index(initializer: Any, buckets: int, default_value: int, hasher_spec: Any) -> Any:
    if buckets < 0:
        raise ValueError(f"num_oov_buckets must be 0 or more; got {buckets}.")
    if hasher_spec is not None and hasher_spec.hasher != "fasthash":
        raise ValueError(f"Words are hashed by 'fasthash'; got {hasher_spec.hasher!r}.")
    if buckets:
        return v1.lookup.StaticVocabularyTable(initializer, buckets)
    return v1.lookup.StaticHashTable(initializer, default_value)


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: str = "UNK",
    name: str | None = None,
    key_column_index: int = tf.lookup.TextFileIndex.LINE_NUMBER,
    value_column_index: int = tf.lookup.TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> Any:
    """Makes a table from a file's line numbers to its words."""
    _check_vocabulary(vocabulary_file, vocab_size)
    with v1.name_scope(name, "index_to_string"):
        initializer = tf.lookup.TextFileInitializer(
            vocabulary_file,
            tf.int64,
            key_column_index,
            tf.string,
            value_column_index,
            vocab_size,
            delimiter,
        )
        return v1.lookup.StaticHashTable(initializer, default_value)

"""Provides all of `tf.contrib.framework.nest`; `tf.nest` has only a part of it."""

from tfx_tpu_trainer.compat.contrib.tf_private import nest

assert_same_structure = nest.assert_same_structure
assert_shallow_structure = nest.assert_shallow_structure
flatten = nest.flatten
flatten_dict_items = nest.flatten_dict_items
flatten_up_to = nest.flatten_up_to
flatten_with_joined_string_paths = nest.flatten_with_joined_string_paths
flatten_with_tuple_paths = nest.flatten_with_tuple_paths
flatten_with_tuple_paths_up_to = nest.flatten_with_tuple_paths_up_to
get_traverse_shallow_structure = nest.get_traverse_shallow_structure
is_nested = nest.is_nested
is_sequence_or_composite = nest.is_sequence_or_composite
map_structure = nest.map_structure
map_structure_up_to = nest.map_structure_up_to
map_structure_with_paths = nest.map_structure_with_paths
map_structure_with_tuple_paths = nest.map_structure_with_tuple_paths
map_structure_with_tuple_paths_up_to = nest.map_structure_with_tuple_paths_up_to
pack_sequence_as = nest.pack_sequence_as
yield_flat_paths = nest.yield_flat_paths
# Its name in TensorFlow 1.
is_sequence = nest.is_nested

__all__ = [
    "assert_same_structure",
    "assert_shallow_structure",
    "flatten",
    "flatten_dict_items",
    "flatten_up_to",
    "flatten_with_joined_string_paths",
    "flatten_with_tuple_paths",
    "flatten_with_tuple_paths_up_to",
    "get_traverse_shallow_structure",
    "is_nested",
    "is_sequence",
    "is_sequence_or_composite",
    "map_structure",
    "map_structure_up_to",
    "map_structure_with_paths",
    "map_structure_with_tuple_paths",
    "map_structure_with_tuple_paths_up_to",
    "pack_sequence_as",
    "yield_flat_paths",
]

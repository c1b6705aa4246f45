"""tf.contrib.data: most of it is in tf.data."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand, moved

_THEME: Final = "contrib"
_DATA: Final = "tensorflow.contrib.data"

_NOW: Final = "tensorflow.data.experimental"
_IN_V1: Final = "tensorflow.compat.v1.data.experimental"
_DROPPED: Final = (
    ".batch(n, drop_remainder=True) instead of .apply(tf.contrib.data.batch_and_drop_remainder(n))"
)
_GONE: Final = {
    "assert_element_shape": ("Gone.", "set the shape in a map: tensor.set_shape(...)"),
    "read_batch_features": (
        "Gone.",
        "tf.data.experimental.make_batched_features_dataset(files, batch_size, features)",
    ),
    "sliding_window_batch": ("Gone.", "dataset.window(size, shift=..., stride=...)"),
    "StatsAggregator": ("Gone.", "leave it out; TensorFlow's profiler shows the input pipeline"),
}

RULES: Final[dict[str, Advice]] = {
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.data.experimental has this name.",
        _DATA,
        _NOW,
        "AUTOTUNE Counter CsvDataset Optional RandomDataset Reducer SqlDataset TFRecordWriter "
        "bucket_by_sequence_length choose_from_datasets copy_to_device dense_to_sparse_batch enumerate_dataset "
        "get_single_element group_by_reducer group_by_window ignore_errors make_batched_features_dataset "
        "make_csv_dataset make_saveable_from_iterator map_and_batch parallel_interleave prefetch_to_device "
        "rejection_resample sample_from_datasets scan shuffle_and_repeat take_while unbatch unique",
    ),
    **moved(
        _THEME,
        "It was tf.contrib.data's dataset before TensorFlow 1.4; tf.data has it.",
        _DATA,
        "tensorflow.compat.v1.data",
        "Dataset FixedLengthRecordDataset Iterator TFRecordDataset TextLineDataset",
    ),
    f"{_DATA}.batch_and_drop_remainder": Advice(
        _THEME,
        Verdict.EDIT,
        "TensorFlow 2 has no tf.contrib; a dataset's batch() does the same.",
        edit=_DROPPED,
        becomes="batch",
        calls_only=True,
    ),
    **{
        f"{module}.batch_and_drop_remainder": Advice(
            _THEME, Verdict.EDIT, "A dataset's batch() does the same.", _DROPPED
        )
        for module in (_NOW, _IN_V1)
    },
    # An import of the old module becomes one of the new, which lacks these.
    **{
        name: told
        for module in (_DATA, _NOW, _IN_V1)
        for name, told in by_hand(_THEME, module, _GONE).items()
    },
    **by_hand(
        _THEME,
        _DATA,
        {"": ("TensorFlow 2 has no tf.contrib.", "look for the name in tf.data.experimental")},
    ),
}

MODULES: Final = {_DATA: _NOW}

"""Input by queues and threads, as it was before tf.data."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand

_THEME: Final = "queues"
_SAYS: Final = (
    "Input by queues. The host still runs it, from Python threads beside the session; on cores it "
    "causes a warning and is slow. tf.data has replaced it since TensorFlow 1.4."
)
_WITHOUT: Final = (
    "leave it out: a dataset has no threads to start, and its iterator is initialized for you"
)

RULES: Final[dict[str, Advice]] = by_hand(
    _THEME,
    "tensorflow.compat.v1.train",
    {
        "batch": (_SAYS, "dataset.batch(batch_size, drop_remainder=True)"),
        "batch_join": (_SAYS, "dataset.interleave(...).batch(batch_size, drop_remainder=True)"),
        "maybe_batch": (_SAYS, "dataset.filter(keep).batch(batch_size, drop_remainder=True)"),
        "maybe_batch_join": (_SAYS, "dataset.filter(keep).batch(batch_size, drop_remainder=True)"),
        "shuffle_batch": (
            _SAYS,
            "dataset.shuffle(capacity).batch(batch_size, drop_remainder=True)",
        ),
        "shuffle_batch_join": (
            _SAYS,
            "dataset.interleave(...).shuffle(capacity).batch(batch_size, drop_remainder=True)",
        ),
        "maybe_shuffle_batch": (
            _SAYS,
            "dataset.filter(keep).shuffle(capacity).batch(batch_size, drop_remainder=True)",
        ),
        "maybe_shuffle_batch_join": (
            _SAYS,
            "dataset.filter(keep).shuffle(capacity).batch(batch_size, drop_remainder=True)",
        ),
        "string_input_producer": (
            _SAYS,
            "tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat(num_epochs)",
        ),
        "slice_input_producer": (
            _SAYS,
            "tf.data.Dataset.from_tensor_slices(tensors).shuffle(rows).repeat(num_epochs)",
        ),
        "input_producer": (_SAYS, "tf.data.Dataset.from_tensor_slices(tensor).repeat(num_epochs)"),
        "range_input_producer": (_SAYS, "tf.data.Dataset.range(limit).repeat(num_epochs)"),
        "limit_epochs": (_SAYS, "dataset.repeat(num_epochs)"),
        "start_queue_runners": (_SAYS, _WITHOUT),
        "add_queue_runner": (_SAYS, _WITHOUT),
        "QueueRunner": (_SAYS, _WITHOUT),
        "queue_runner": (_SAYS, _WITHOUT),
        "Coordinator": (_SAYS, _WITHOUT),
    },
) | by_hand(
    _THEME,
    "tensorflow.compat.v1",
    {
        "TFRecordReader": (_SAYS, "tf.data.TFRecordDataset(files)"),
        "TextLineReader": (_SAYS, "tf.data.TextLineDataset(files).skip(header_lines)"),
        "WholeFileReader": (
            _SAYS,
            "tf.data.Dataset.from_tensor_slices(files).map(tf.io.read_file)",
        ),
        "FixedLengthRecordReader": (_SAYS, "tf.data.FixedLengthRecordDataset(files, record_bytes)"),
        "IdentityReader": (_SAYS, "tf.data.Dataset.from_tensor_slices(values)"),
    },
)

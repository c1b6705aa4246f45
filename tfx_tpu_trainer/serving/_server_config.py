"""Writes the files for TensorFlow Serving's command line next to the model's versions.

They are text protos: `model.config` a `tensorflow.serving.ModelServerConfig`, the others a
`tensorflow.serving.BatchingParameters`, whose Python class is not published.
"""

import dataclasses
import os
from collections.abc import Mapping

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tfx_tpu_trainer._support.whole_files import folder_written_whole

CONFIG_FOLDER = "serving_config"
"""Name of the folder, at the root of a Model artifact."""

MODEL_CONFIG_FILE = "model.config"
CPU_BATCHING_FILE = "batching_parameters_cpu.txt"
TPU_BATCHING_FILE = "batching_parameters_tpu.txt"
_FILES = (MODEL_CONFIG_FILE, CPU_BATCHING_FILE, TPU_BATCHING_FILE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerBatching:
    """How a server combines the rows of several requests.

    Attributes:
        max_batch_size: The most rows of a batch.
        batch_timeout_micros: Microseconds that a batch which is not full waits for more rows.
        num_batch_threads: Number of batches that are computed at the same time.
        max_enqueued_batches: Number of batches that may wait; further requests are rejected.
        allowed_batch_sizes: Sizes to which a batch is padded, increasing, the last one `max_batch_size`; empty for no
            padding.
    """

    max_batch_size: int
    batch_timeout_micros: int
    num_batch_threads: int
    max_enqueued_batches: int = 100
    allowed_batch_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("max_batch_size", 1),
            ("batch_timeout_micros", 0),
            ("num_batch_threads", 1),
            ("max_enqueued_batches", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got: {getattr(self, name)!r}")
        sizes = list(self.allowed_batch_sizes)
        if sizes and (
            sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != self.max_batch_size
        ):
            raise ValueError(
                "allowed_batch_sizes must increase and end with max_batch_size "
                f"({self.max_batch_size}), got: {sizes}"
            )

    def to_text(self) -> str:
        """Returns the text proto."""
        lines = [
            f"{name} {{ value: {getattr(self, name)} }}"
            for name in (
                "max_batch_size",
                "batch_timeout_micros",
                "max_enqueued_batches",
                "num_batch_threads",
            )
        ]
        lines += [f"allowed_batch_sizes: {size}" for size in self.allowed_batch_sizes]
        return "\n".join(lines) + "\n"


CPU_BATCHING = ServerBatching(max_batch_size=128, batch_timeout_micros=1000, num_batch_threads=4)
"""Short waits, no padding: a CPU takes any shape, and padded rows are wasted work."""

TPU_BATCHING = ServerBatching(
    max_batch_size=128,
    batch_timeout_micros=5000,
    num_batch_threads=8,
    allowed_batch_sizes=(8, 32, 128),
)
"""Few shapes, each compiled once: multiples of 8, the smallest size of a TPU's computations."""


def batching_for_tpu(batch_sizes: tuple[int, ...]) -> ServerBatching:
    """Returns the batching for a TPU host that pads up to given sizes.

    Args:
        batch_sizes: The allowed sizes, in any order; empty for the defaults.
    """
    if not batch_sizes:
        return TPU_BATCHING
    sizes = tuple(sorted(set(batch_sizes)))
    return dataclasses.replace(TPU_BATCHING, max_batch_size=sizes[-1], allowed_batch_sizes=sizes)


def model_config_text(model_name: str, base_path: str) -> str:
    """Returns a `model_config_list` of one model as text."""
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.config.add(
        name=model_name, base_path=base_path, model_platform="tensorflow"
    )
    return text_format.MessageToString(config)


def write_server_config(
    model_uri: str,
    *,
    model_name: str = "model",
    base_path: str = "/models/model",
    cpu: ServerBatching = CPU_BATCHING,
    tpu: ServerBatching | None = None,
) -> str:
    """Writes `serving_config/` next to the model, whole or not at all.

    Args:
        model_uri: Root of the Model artifact.
        model_name: Name under which the model is served.
        base_path: Folder of the versions, as the server sees it. Servers number versions, so it is the folder into
            which the model is pushed instead of the artifact.
        cpu: Batching of a CPU host.
        tpu: Batching of a TPU host; `None` if the model has no metagraph for one.

    Returns:
        The folder.
    """
    files: Mapping[str, str] = {
        MODEL_CONFIG_FILE: model_config_text(model_name, base_path),
        CPU_BATCHING_FILE: cpu.to_text(),
        **({TPU_BATCHING_FILE: tpu.to_text()} if tpu else {}),
    }
    folder = os.path.join(model_uri, CONFIG_FOLDER)
    with folder_written_whole(folder, replaceable=_FILES, last=[MODEL_CONFIG_FILE]) as staging:
        for name, text in files.items():
            # Makes no folder: another attempt may have swept a missing one, and only half of it would be put in place.
            with tf.io.gfile.GFile(os.path.join(staging, name), "w") as file:
                file.write(text)
    return folder

"""What makes two trainings the same one, so that the second may go on where the first has stopped."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tfx import v1 as tfx

from tfx_tpu_trainer.components.trainer.module_source import ModuleSource, source_hash
from tfx_tpu_trainer.components.trainer.train_job import TrainJob

_STAT_THREADS = 16
# Inputs that only the page of the training reads.
_ONLY_SHOWN = ("statistics",)


@dataclasses.dataclass(frozen=True)
class TrainingIdentity:
    """Pipeline, node, inputs, code and settings of a training.

    Settings that leave no trace in a checkpoint are no part of it: a training whose serving check
    has failed is not made again to change the check's timeout.

    Attributes:
        description: All of it, as JSON values.
    """

    description: Mapping[str, Any]

    @classmethod
    def of(cls, job: TrainJob, *, evaluates: bool = True) -> TrainingIdentity:
        """Describes a training. The files of its inputs are listed, with sizes and times, not read."""
        settings = job.settings.to_exec_properties()
        return cls(
            {
                "pipeline": job.pipeline,
                "node": job.node,
                "inputs": {
                    key: [_artifact(artifact) for artifact in job.inputs[key]]
                    for key in sorted(job.inputs)
                    if key not in _ONLY_SHOWN
                },
                "code": code_of(job.source),
                "train_steps": job.train_steps,
                "train_splits": list(job.train_splits),
                "eval_steps": job.eval_steps if evaluates else None,
                "eval_splits": list(job.eval_splits),
                "custom_config": repr(job.custom_config),
                "settings": {
                    name: value
                    for name, value in sorted(settings.items())
                    if job.settings.about(name).in_checkpoint
                },
            }
        )

    @property
    def digest(self) -> str:
        """A name for it, 16 hexadecimal digits."""
        text = json.dumps(self.description, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _artifact(artifact: tfx.dsl.Artifact) -> dict[str, str]:
    return {
        "type": artifact.type_name,
        "uri": artifact.uri,
        "content": _content(artifact.uri),
    }


def _content(uri: str) -> str:
    """Hashes the names, sizes and times of what stands below an artifact's URI.

    TFX never writes twice to a URI of its own, but an imported artifact's files may be replaced.
    """
    paths = sorted(
        os.path.join(folder, name) for folder, _, names in tf.io.gfile.walk(uri) for name in names
    )
    # Each is a job to an object store.
    with concurrent.futures.ThreadPoolExecutor(_STAT_THREADS) as pool:
        found = list(pool.map(tf.io.gfile.stat, paths))
    digest = hashlib.sha256()
    for path, stat in zip(paths, found, strict=True):
        digest.update(f"{path.removeprefix(uri)}\0{stat.length}\0{stat.mtime_nsec}\0".encode())
    return digest.hexdigest()[:16]


def code_of(source: ModuleSource) -> str:
    """Names a user's module, with a digest of its code."""
    if source.module:
        function = f":{source.trainer_fn}" if source.trainer_fn else ""
        return f"{source.module}{function}@{source_hash(source.module)}"
    if source.file:
        with tf.io.gfile.GFile(source.file, "rb") as file:
            return f"{os.path.basename(source.file)}@{hashlib.sha256(file.read()).hexdigest()}"
    # The version of TFX's wheel is a hash of its files.
    name, _, wheel = (source.wheel or "").partition("@")
    return f"{name}@{os.path.basename(wheel)}"

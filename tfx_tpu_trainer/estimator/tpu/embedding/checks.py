"""Whether a TPUEstimator can have the embeddings it is given, and where."""

from __future__ import annotations

from typing import Any

from tfx_tpu_trainer.engine.feeding.core_layout import InputMode
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig

_INPUT_MODES = (InputMode.PER_HOST_V1, InputMode.PER_HOST_V2)


def check_embeddings(spec: Any, *, config: RunConfig, use_tpu: bool, eval_on_tpu: bool) -> None:
    """Checks an estimator's spec against its configuration.

    Args:
        spec: What the estimator was given; `None` is fine.
        config: Its configuration.
        use_tpu: Whether it runs on cores.
        eval_on_tpu: Whether it evaluates there too.

    Raises:
        TypeError: If it is no `EmbeddingConfigSpec`.
        ValueError: If the input mode, the partition strategy or the number of shards do not allow
            for embeddings.
    """
    if spec is None:
        return
    if not isinstance(spec, EmbeddingConfigSpec):
        raise TypeError(
            "embedding_config_spec must be an EmbeddingConfigSpec of "
            f"tfx_tpu_trainer.estimator.tpu.experimental; got {spec!r}."
        )
    tpu_config = config.tpu_config
    mode = InputMode(tpu_config.per_host_input_for_training)
    if use_tpu and mode not in _INPUT_MODES:
        raise ValueError(
            "Only PER_HOST_V1 and PER_HOST_V2 is supported when using TPU Embedding; got "
            f"{mode.name}. Set TPUConfig(per_host_input_for_training=...) to one of the two."
        )
    if spec.partition_strategy == "mod" and not (use_tpu and eval_on_tpu):
        raise ValueError(
            "Mod sharding of embedding tables not supported on CPU: with "
            f'use_tpu={use_tpu} and eval_on_tpu={eval_on_tpu} use partition_strategy="div".'
        )
    if tpu_config.num_shards == 1 and tpu_config.num_cores_per_replica is None:
        raise ValueError(
            "Setting TPUConfig.num_shards==1 is unsupported when embedding_config_spec is not "
            "None: leave num_shards out, or set num_cores_per_replica=1 beside it."
        )


def refuse_embeddings(spec: EmbeddingConfigSpec | None, where: str) -> None:
    """Refuses embeddings where their tables can't be looked up.

    Args:
        spec: The spec, or `None`.
        where: The place, for the message.

    Raises:
        ValueError: If there is a spec.
    """
    if spec is not None:
        raise ValueError(
            f"embedding_config_spec is not implemented {where}: its tables are emulated only. "
            'Emulate the cores with RunConfig(master="emulated") or TFX_TPU_TRAINER_EMULATE=1, or '
            "run with use_tpu=False, where its columns are ordinary embedding columns."
        )

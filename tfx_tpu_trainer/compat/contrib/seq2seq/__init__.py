"""Replaces `tf.contrib.seq2seq`: decoders, their helpers, attention, and the loss of sequences."""

import importlib
from typing import TYPE_CHECKING, Any

from tfx_tpu_trainer.compat.contrib.seq2seq.beam_search import (
    BeamSearchDecoder,
    BeamSearchDecoderOutput,
    BeamSearchDecoderState,
    FinalBeamSearchDecoderOutput,
    gather_tree,
)
from tfx_tpu_trainer.compat.contrib.seq2seq.decoding import (
    BasicDecoder,
    BasicDecoderOutput,
    Decoder,
    dynamic_decode,
    hardmax,
    sequence_loss,
    tile_batch,
)
from tfx_tpu_trainer.compat.contrib.seq2seq.helpers import (
    CustomHelper,
    GreedyEmbeddingHelper,
    Helper,
    SampleEmbeddingHelper,
    ScheduledEmbeddingTrainingHelper,
    TrainingHelper,
)

if TYPE_CHECKING:
    from tfx_tpu_trainer.compat.contrib.seq2seq.attention import (
        AttentionMechanism,
        AttentionWrapper,
        AttentionWrapperState,
        BahdanauAttention,
        LuongAttention,
    )

__all__ = [
    "AttentionMechanism",
    "AttentionWrapper",
    "AttentionWrapperState",
    "BahdanauAttention",
    "BasicDecoder",
    "BasicDecoderOutput",
    "BeamSearchDecoder",
    "BeamSearchDecoderOutput",
    "BeamSearchDecoderState",
    "CustomHelper",
    "Decoder",
    "FinalBeamSearchDecoderOutput",
    "GreedyEmbeddingHelper",
    "Helper",
    "LuongAttention",
    "SampleEmbeddingHelper",
    "ScheduledEmbeddingTrainingHelper",
    "TrainingHelper",
    "dynamic_decode",
    "gather_tree",
    "hardmax",
    "sequence_loss",
    "tile_batch",
]


def __getattr__(name: str) -> Any:
    # Cells are Keras 2 layers, which TensorFlow has only with TF_USE_LEGACY_KERAS=1.
    if "Attention" in name:
        return getattr(importlib.import_module(f"{__name__}.attention"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

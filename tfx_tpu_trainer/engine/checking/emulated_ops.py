"""Says which ops of a step run on emulated cores, though on no TPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer.engine.checking import tpu_support
from tfx_tpu_trainer.engine.checking.source_lines import is_of_a_library, source_line
from tfx_tpu_trainer.engine.checking.step_ops import nodes_of_step
from tfx_tpu_trainer.engine.template import ModelTemplate

_logger = tf.get_logger()

_SHOWN = 5
# Where tf.compat.v1.tpu.outside_compilation stands: emulated, it leaves nothing but its frame.
_OF_TPU = os.path.join("tensorflow", "python", "tpu")
_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What these make of the input for an emulated core, serialized sparse rows, a TPU never sees.
_PREPARING = (_ENGINE, os.path.join(os.path.dirname(_ENGINE), "estimator", "tpu"))


def warn_of_ops_for_hosts(template: ModelTemplate) -> None:
    """Logs one warning that names the ops of a step which no TPU can run, and their lines.

    They are let run, as they would in the original with `use_tpu=False`; the preflight and a real
    TPU refuse them. What `outside_compilation` keeps on the host is left out.

    Args:
        template: A template traced on the inputs of one core.
    """
    found = dict(_ops_for_hosts(template))
    if not found:
        return
    shown = [f"{op.type} {op.name!r} {why} ({_where(op)})" for op, why in found.items()][:_SHOWN]
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    _logger.warning(
        "TPU cores are emulated: these ops run here, and no TPU can run them: %s%s. Compute this "
        "in the input_fn or in Transform, or call it through "
        "tf.compat.v1.tpu.outside_compilation(function, *tensors).",
        "; ".join(shown),
        more,
    )


def _ops_for_hosts(template: ModelTemplate) -> Iterator[tuple[tf.Operation, str]]:
    for op, nodes in nodes_of_step(template):
        reason = next(filter(None, map(tpu_support.why_not_on_tpu, nodes)), None)
        if reason is not None and not _is_made_for_emulation(op):
            yield op, reason


def _is_made_for_emulation(op: tf.Operation) -> bool:
    """Whether `outside_compilation` or the engine's own preparation of the input made an op."""
    maker = ""
    for frame in op.traceback or ():
        if _OF_TPU in frame.filename and frame.name == "outside_compilation":
            return True
        if not is_of_a_library(frame):
            maker = frame.filename
    return maker.startswith(_PREPARING)


def _where(op: tf.Operation) -> str:
    return source_line(op) or "its source line is not known"

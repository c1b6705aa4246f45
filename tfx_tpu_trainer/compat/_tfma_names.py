"""What TensorFlow Model Analysis had for Estimators: `tfma.export`."""

from __future__ import annotations

import types

from tfx_tpu_trainer.compat import tfma_export
from tfx_tpu_trainer.compat._alias_module import make_module
from tfx_tpu_trainer.compat._undo_log import UndoLog

WATCHED = ("tensorflow_model_analysis", "tensorflow_model_analysis.eval_saved_model")
"""The modules that had an `export`."""

_NAMES = ("EvalInputReceiver", "build_parsing_eval_input_receiver_fn", "export_eval_savedmodel")


def add(log: UndoLog, module: types.ModuleType) -> None:
    """Puts `export` back into a module, where it has none."""
    if "export" in vars(module):
        return
    name = f"{module.__name__}.export"
    export = make_module(
        name,
        {each: getattr(tfma_export, each) for each in _NAMES},
        doc="The evaluation export of tfx_tpu_trainer.compat, where TFMA had its own.",
    )
    log.set_module(name, export)
    log.set_attribute(module, "export", export)

"""TFX, TFMA and what of them spoke of estimators."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand

_THEME: Final = "tfx"
_EXECUTOR: Final = "tfx.components.trainer.executor"
_TFMA: Final = "tensorflow_model_analysis"
_GONE: Final = "TFX 1.16 removed the executor of estimators."
_TRAINER: Final = (
    "tfx_tpu_trainer.components.TpuTrainer(module_file=...) instead of Trainer: it runs "
    "trainer_fn(fn_args, schema) unchanged"
)
_EXPORT: Final = Advice(
    _THEME,
    Verdict.WORKS,
    "TFMA 0.47 removed tfma.export; tfx_tpu_trainer.compat restores this name, and today's TFMA "
    "can read the export.",
)

RULES: Final[dict[str, Advice]] = {
    **by_hand(
        _THEME,
        _EXECUTOR,
        {
            "Executor": (_GONE, _TRAINER),
            "TrainerFnArgs": (
                "TFX 1.16 has no TrainerFnArgs.",
                "tfx.components.FnArgs, or no annotation at all",
            ),
        },
    ),
    f"{_TFMA}.export.EvalInputReceiver": _EXPORT,
    f"{_TFMA}.export.export_eval_savedmodel": _EXPORT,
    f"{_TFMA}.eval_saved_model.export.EvalInputReceiver": Advice(
        _THEME,
        Verdict.EDIT,
        "A private path of TFMA that no longer exists.",
        "tfma.export.EvalInputReceiver, which tfx_tpu_trainer.compat restores",
    ),
    f"{_TFMA}.eval_saved_model.export.export_eval_savedmodel": Advice(
        _THEME,
        Verdict.EDIT,
        "A private path of TFMA that no longer exists.",
        "tfma.export.export_eval_savedmodel, which tfx_tpu_trainer.compat restores",
    ),
    **by_hand(
        _THEME,
        _TFMA,
        {
            "post_export_metrics": (
                "Metrics that were added to an eval export.",
                "tfma.MetricConfig(class_name=...) in the Evaluator's EvalConfig",
            ),
            "export.build_parsing_eval_input_receiver_fn": (
                "TFMA 0.47 removed it.",
                (
                    "a function that parses the examples and returns tfma.export.EvalInputReceiver(features, "
                    "receiver_tensors, labels)"
                ),
            ),
            "exporter": (
                "TFMA's exporters of eval SavedModels are gone.",
                "return eval_input_receiver_fn from trainer_fn: TpuTrainer makes the export",
            ),
        },
    ),
    **by_hand(
        _THEME,
        "tensorflow_transform.saved",
        {
            "": (
                "A private path of Transform.",
                "tft.TFTransformOutput(folder).transform_raw_features(features)",
            )
        },
    ),
}

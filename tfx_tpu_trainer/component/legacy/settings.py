"""Which parameters of a TpuTrainer say nothing to a module that makes its own estimator."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.component.settings import TrainSettings

_INPUTS = "the input functions of the module say so"
_ESTIMATOR = "the estimator and the RunConfig that the module makes say so"
_EVALUATIONS = (
    "there is an evaluation after each checkpoint, at most one in EvalSpec(throttle_secs=...), and the "
    "exporters of the EvalSpec say what is exported"
)

_WHY: Mapping[str, str] = types.MappingProxyType(
    {
        "label_key": "the input functions and the eval_input_receiver_fn of the module say so",
        "params": "a module finds values of yours in trainer_fn_args.custom_config: give custom_config",
        **dict.fromkeys(("train_batch_size", "eval_batch_size", "predict_batch_size"), _INPUTS),
        **dict.fromkeys(
            (
                "tpu",
                "use_tpu",
                "master",
                "num_shards",
                "num_cores_per_replica",
                "iterations_per_loop",
                "save_checkpoints_steps",
                "keep_checkpoint_max",
                "save_summary_steps",
                "log_step_count_steps",
                "tf_random_seed",
                "export_to_cpu",
                "export_to_tpu",
                "export_saved_model_api_version",
            ),
            _ESTIMATOR,
        ),
        **dict.fromkeys(
            (
                "eval_every_steps",
                "eval_every_secs",
                "best_metric",
                "best_metric_mode",
                "early_stopping_patience",
            ),
            _EVALUATIONS,
        ),
        **dict.fromkeys(
            ("slicing_specs", "max_slices"),
            "give them to the stock Evaluator, which reads Format-Serving",
        ),
        "preflight": "it compiles a model_fn's steps before anything is trained",
    }
)


def check_settings(values: Mapping[str, Any]) -> None:
    """Refuses parameters that a legacy module could not see.

    Args:
        values: Parameters by name, settings of other kinds too. `None`, and a setting's default,
            count as not given.

    Raises:
        ValueError: One is given; says where the module has it.
    """
    for name, why in _WHY.items():
        value = values.get(name)
        if _is_given(name, value):
            raise ValueError(
                f"{name}={value!r} has no meaning for a module with a trainer_fn: {why}; leave it out"
            )


def _is_given(name: str, value: Any) -> bool:
    default = TrainSettings.model_fields[name].default
    try:
        return value is not None and bool(value != default)
    except (TypeError, ValueError):
        # A runtime parameter or a placeholder, which makes a comparison part of the pipeline.
        return True

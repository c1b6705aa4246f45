"""A user's module as a model for the preflight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.components.user_module._feature_spec import FeatureSpec
from tfx_tpu_trainer.components.user_module._module import UserModule
from tfx_tpu_trainer.preflight import InputFn, PreflightModel


def model_of_module(
    module: UserModule,
    *,
    spec: FeatureSpec | None = None,
    params: Mapping[str, Any] | None = None,
) -> PreflightModel:
    """Adds the params and the input that `TpuTrainer` would give a module, as far as they are known here.

    Args:
        module: The module.
        spec: What the model is fed, instead of the module's own input_fn. Defaults to `None`: the module's input_fn is
            called.
        params: Values for the functions' `params`; they win over the module's. Defaults to none.

    Returns:
        The model.

    Raises:
        ValueError: The input is not known, or the module's functions want what only a pipeline has.
    """
    sizes = {"vocabulary_sizes": dict(spec.vocabulary_sizes)} if spec is not None else {}
    if spec is not None and spec.label_key is None and module.takes_labels:
        raise ValueError(
            f"model_fn of module {module.name!r} takes labels: name the feature that is the label "
            f"(label_key), one of {', '.join(sorted(spec.features))}."
        )
    return PreflightModel(
        model_fn=module.model_fn,
        input_fns=_input_fns(module, spec),
        params={**sizes, **_params(module, given=params), **(params or {})},
        name=module.name,
    )


def _input_fns(module: UserModule, spec: FeatureSpec | None) -> dict[str, InputFn]:
    if spec is not None:
        return dict.fromkeys(("train", "eval", "predict"), spec.input_fn())
    if module.input_fn is None:
        raise ValueError(
            f"module {module.name!r} has no input_fn, so the input of model_fn is unknown: give a "
            "Transform output or a feature spec."
        )
    if module.input_fn_wants_fn_args:
        raise ValueError(
            f"input_fn of module {module.name!r} takes fn_args, which only a pipeline has: give a "
            "Transform output or a feature spec instead."
        )
    evaluation = module.input_fn_for("eval", None)
    train = module.input_fn_for("train", None)
    assert train is not None and evaluation is not None  # there is an input_fn
    return {"train": train, "eval": evaluation, "predict": evaluation}


def _params(module: UserModule, *, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if not callable(module.params):
        return module.params_for(None)
    if given is None:
        raise ValueError(
            f"params of module {module.name!r} is a function of fn_args, which only a pipeline has: "
            "give the values of the params."
        )
    return {}

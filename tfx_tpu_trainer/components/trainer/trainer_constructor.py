"""What a TpuTrainer's constructor takes: all parameters in order, its signature and its documentation."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfx_tpu_trainer.components.trainer.names import suggest
from tfx_tpu_trainer.components.trainer.parameter_values import plain_type, stored_as
from tfx_tpu_trainer.components.trainer.trainer_parameters import (
    DATA,
    GROUPS,
    MODEL,
    STEPS,
    About,
    TrainSettings,
)

_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of the component.

    Attributes:
        name: Its name.
        about: What it is for.
        given_as: What the constructor takes, as an annotation's text.
        default: The constructor's default; `inspect.Parameter.empty` where it must be given.
        stored_as: `int` or `str`, as which TFX stores it; `None` for an input artifact and for what TFX has a
            message for.
    """

    name: str
    about: About
    given_as: str
    default: Any
    stored_as: type | None


def _input(name: str, text: str, group: str, *, optional: bool = False) -> Parameter:
    return Parameter(
        name=name,
        about=About(text, group),
        given_as="tfx.types.BaseChannel | None" if optional else "tfx.types.BaseChannel",
        default=None if optional else inspect.Parameter.empty,
        stored_as=None,
    )


def _own(
    name: str, given_as: str, about: About, *, default: Any = None, stored_as: type | None = str
) -> Parameter:
    return Parameter(
        name=name, about=about, given_as=given_as, default=default, stored_as=stored_as
    )


def _setting(name: str) -> Parameter:
    field, about = TrainSettings.model_fields[name], TrainSettings.about(name)
    default = None if about.default else field.default
    kinds = [about.given_as or plain_type(field.annotation).__name__]
    # A cluster is asked for the slice when the pipeline is compiled.
    kinds += [] if name == "tpu" else ["RuntimeParameter"]
    kinds += ["None"] if default is None else []
    return Parameter(
        name=name,
        about=about,
        given_as=" | ".join(kinds),
        default=default,
        stored_as=stored_as(field.annotation),
    )


_NO_SETTINGS = (
    _input("examples", "Transform's `transformed_examples`.", DATA),
    _input("transform_graph", "Transform's `transform_graph`.", DATA),
    _input("schema", "The schema of the raw data.", DATA),
    _input(
        "raw_examples",
        "ExampleGen's `examples`, the ones Transform read: real rows for the warm-up requests and "
        "for the check of the exported model.",
        DATA,
        optional=True,
    ),
    _input(
        "statistics",
        "StatisticsGen's `statistics` of the raw examples, which the training's page shows.",
        DATA,
        optional=True,
    ),
    _own(
        "module_file",
        "str | RuntimeParameter | None",
        About(
            "Path of a .py file that defines `model_fn`. TFX packages it as a wheel, together "
            "with the .py files next to it.",
            MODEL,
        ),
    ),
    _own(
        "module",
        "str | None",
        About(
            "Import path of a module that defines `model_fn`; replaces `module_file`. Its package "
            "must be importable where the trainer runs.",
            MODEL,
        ),
    ),
    _own(
        "trainer_fn",
        "str | None",
        About(
            "Import path of a function `trainer_fn(trainer_fn_args, schema)`, as for the "
            "Estimator executor of TFX <= 1.15; replaces `module_file` and `module`, which may "
            "also name a module with such a function. The function makes the estimator itself, so "
            "parameters that would configure one are refused; see docs/legacy.md.",
            MODEL,
        ),
    ),
    _own(
        "restore_tf_estimator",
        "bool | RuntimeParameter",
        About(
            "Whether to restore `tf.estimator` and `tfma.export` while a module with a trainer_fn "
            "is imported and runs.",
            MODEL,
        ),
        default=True,
        stored_as=int,
    ),
    _own(
        "custom_config",
        "Mapping[str, Any] | RuntimeParameter | None",
        About("JSON values for `fn_args.custom_config`.", MODEL),
    ),
    _input(
        "base_model",
        "A Model that provides the initial values of the variables.",
        MODEL,
        optional=True,
    ),
    _input(
        "hyperparameters",
        "A Tuner's `best_hyperparameters`; they override all other params.",
        MODEL,
        optional=True,
    ),
    _own(
        "train_args",
        "tfx.proto.TrainArgs | RuntimeParameter | None",
        About(
            "Splits (default: `train`) and `num_steps`, the global step to train to; `num_steps` "
            "is required.",
            STEPS,
        ),
        stored_as=None,
    ),
    _own(
        "eval_args",
        "tfx.proto.EvalArgs | RuntimeParameter | None",
        About(
            "Splits (default: `eval`) and `num_steps`, the number of batches.",
            STEPS,
            default="whole split `eval`",
        ),
        stored_as=None,
    ),
)

PARAMETERS: Mapping[str, Parameter] = types.MappingProxyType(
    {
        each.name: each
        for each in sorted(
            (*_NO_SETTINGS, *map(_setting, TrainSettings.model_fields)),
            key=lambda parameter: GROUPS.index(parameter.about.group),
        )
    }
)
"""All parameters of a TpuTrainer by name, in the order in which a reader meets them."""


def declare(constructor: Callable[..., None], parameters: Iterable[Parameter]) -> None:
    """Shows a constructor that takes `**keywords` with the signature and the documentation that it has.

    `help()`, notebooks and documentation tools read both from here; for editors, which don't run the code, the stub
    `components/trainer/__init__.pyi` holds the same.
    """
    parameters = tuple(parameters)
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(
                inspect.Parameter(
                    each.name, keyword, default=each.default, annotation=each.given_as
                )
                for each in parameters
            ),
        ]
    )
    documentation = (constructor.__doc__ or "").replace(
        "**parameters: {parameters}", "\n".join(map(_documented, parameters)).lstrip()
    )
    vars(constructor).update(__signature__=signature)
    constructor.__doc__ = documentation


def bind(constructor: Callable[..., None], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a declared constructor, defaults filled in."""
    signature = inspect.signature(constructor)
    names = [name for name in signature.parameters if name != "self"]
    class_name = constructor.__qualname__.partition(".")[0]
    for name in given:
        if name not in names:
            raise TypeError(
                f"{class_name} got an unexpected keyword argument {name!r}; {suggest(name, names)}"
            )
    try:
        bound = signature.bind(None, **given)
    except TypeError as error:
        raise TypeError(f"{class_name}: {error}") from None
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in names}


def default_text(parameter: Parameter) -> str:
    """Returns a parameter's default as documentation names it; `""` where it must be given."""
    if parameter.about.default:
        return parameter.about.default
    if parameter.default is inspect.Parameter.empty:
        return ""
    return f"`{parameter.default!r}`"


def _documented(parameter: Parameter) -> str:
    default = default_text(parameter)
    text = f"{parameter.name}: {parameter.about.text}" + (
        f" Defaults to {default}." if default else ""
    )
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=" " * 12,
        subsequent_indent=" " * 16,
        break_long_words=False,
        break_on_hyphens=False,
    )

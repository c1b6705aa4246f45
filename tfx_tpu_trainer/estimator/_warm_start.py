"""Warm start: initializes a model's variables from a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import (
    check_can_be_opened,
    check_is_no_pattern,
    path_text,
)
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import open_checkpoint

v1 = tf.compat.v1
_logger = tf.get_logger()

# The original exports the class under the name of `tf.compat.v1.train`'s neighbour.
VocabInfo = v1.train.VocabInfo


class _Fields(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: dict[str, Any]
    var_name_to_prev_var_name: dict[str, str]


class WarmStartSettings(_Fields):
    """Selects the variables that start from a checkpoint; mirrors `tf.estimator.WarmStartSettings`.

    Examples:
        The variables below `bert`, one of which had another name:

        >>> from tfx_tpu_trainer.estimator import WarmStartSettings
        >>> settings = WarmStartSettings(
        ...     "runs/old", vars_to_warm_start="bert/.*", var_name_to_prev_var_name={"bert/w": "model/w"}
        ... )
        >>> settings.ckpt_to_initialize_from, settings.vars_to_warm_start
        ('runs/old', 'bert/.*')
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: str,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: dict[str, Any] | None = None,
        var_name_to_prev_var_name: dict[str, str] | None = None,
    ) -> WarmStartSettings:
        """Makes the settings."""
        if not ckpt_to_initialize_from:
            raise ValueError(
                "`ckpt_to_initialize_from` MUST be set in WarmStartSettings; got "
                f"{ckpt_to_initialize_from!r}."
            )
        for pattern in _patterns(vars_to_warm_start):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"vars_to_warm_start={vars_to_warm_start!r}: {pattern!r} is not a regular expression ({error}); "
                    "give one that names of variables begin with, such as 'dense' or '.*'."
                ) from None
        ckpt_to_initialize_from = path_text("ckpt_to_initialize_from", ckpt_to_initialize_from)
        check_is_no_pattern("ckpt_to_initialize_from", ckpt_to_initialize_from)
        for name, given in (
            ("var_name_to_vocab_info", var_name_to_vocab_info),
            ("var_name_to_prev_var_name", var_name_to_prev_var_name),
        ):
            if not isinstance(given, Mapping | None):
                raise TypeError(f"{name} must be a dict of names of variables; got {given!r}.")
        return super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def _patterns(vars_to_warm_start: Any) -> list[str]:
    """Returns the regular expressions among the selected variables; the original takes variables too."""
    listed = (
        vars_to_warm_start
        if isinstance(vars_to_warm_start, (list, tuple))
        else [vars_to_warm_start]
    )
    return [each for each in listed if isinstance(each, str)]


def as_warm_start_settings(warm_start_from: Any) -> WarmStartSettings | None:
    """Returns the settings for a constructor's `warm_start_from`."""
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = path_text("warm_start_from", warm_start_from)
        check_can_be_opened("warm_start_from", path)
        check_is_no_pattern("warm_start_from", path)
        if tf.saved_model.contains_saved_model(path):
            _logger.info("Warm-starting from a SavedModel")
            path = os.path.join(path, "variables", "variables")
        return WarmStartSettings(ckpt_to_initialize_from=path)
    raise ValueError(
        "warm_start_from must be a string or a WarmStartSettings, instead got "
        f"{type(warm_start_from)}."
    )


def warm_start(settings: WarmStartSettings) -> None:
    """Initializes the default graph's variables from a checkpoint."""
    path = settings.ckpt_to_initialize_from
    check_can_be_opened("ckpt_to_initialize_from", path)
    open_checkpoint(checkpoints.require_checkpoint(path) if tf.io.gfile.isdir(path) else path)
    _check_vocabularies(settings.var_name_to_vocab_info)
    patterns = _patterns(settings.vars_to_warm_start)
    # TensorFlow's selection: a single string selects among the trainable variables, a list among all.
    everywhere = isinstance(settings.vars_to_warm_start, str)
    key = v1.GraphKeys.TRAINABLE_VARIABLES if everywhere else v1.GraphKeys.GLOBAL_VARIABLES
    for pattern in patterns:
        if not v1.get_collection(key, scope=pattern):
            names = ", ".join(sorted(variable.op.name for variable in v1.get_collection(key)))
            _logger.warning(
                "vars_to_warm_start: no variable's name begins with %r; there are %s",
                pattern,
                names,
            )
    selected = settings.vars_to_warm_start
    if isinstance(selected, tuple):
        # TensorFlow takes several only in a list.
        settings = settings._replace(vars_to_warm_start=list(selected))
    try:
        v1.train.warm_start(*settings)
    except ValueError as error:
        raise ValueError(
            f"{error} The checkpoint to warm-start from is {path}: give one of "
            "the same model, or name the variables to take, WarmStartSettings(vars_to_warm_start=...)."
        ) from error


def _check_vocabularies(infos: Mapping[str, Any] | None) -> None:
    for name, info in (infos or {}).items():
        for field in ("new_vocab", "old_vocab"):
            path = getattr(info, field, None)
            if isinstance(path, str) and not tf.io.gfile.exists(path):
                raise tf.errors.NotFoundError(
                    None,
                    None,
                    f"var_name_to_vocab_info[{name!r}]: {field}={path!r} does not exist; give the file of the "
                    "vocabulary.",
                )

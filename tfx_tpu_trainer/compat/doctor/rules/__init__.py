"""Looks up names in tables of advice, one for each part of the API."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Final

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer.compat.doctor._findings import Advice, Verdict, joined
from tfx_tpu_trainer.compat.doctor.rules import (
    contrib_estimators,
    contrib_other,
    contrib_ours,
    estimators,
    gone_names,
)

CONTRIB: Final = "tensorflow.contrib"
_NOT_IN_V1: Final = re.compile(
    r"tensorflow\.compat\.v1\.(?=(contrib|examples|models|python|tools)\b)"
)

RULES: Final[dict[str, Advice]] = joined(
    contrib_other.DATA_RULES,
    contrib_estimators.ESTIMATOR_RULES,
    contrib_other.KERAS_RULES,
    contrib_other.LAYER_RULES,
    contrib_estimators.RULES,
    contrib_other.RULES,
    contrib_ours.RULES,
    contrib_other.SUMMARY_RULES,
    contrib_estimators.TPU_RULES,
    gone_names.RULES,
    gone_names.PRIVATE_RULES,
    contrib_estimators.PRIVATE_TPU_RULES,
    contrib_estimators.EMBEDDINGS_RULES,
    gone_names.QUEUE_RULES,
    estimators.KERAS_RULES,
    estimators.TFX_RULES,
)
# Modules with a drop-in replacement, so only their import is edited.
MODULES: Final[dict[str, str]] = {
    **contrib_other.MODULES,
    **contrib_ours.MODULES,
    **contrib_estimators.MODULES,
}


# A program repeats the same names.
@functools.lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Returns a name as the rules spell it.

    Private paths become the public one, `tensorflow.contrib.tpu.python.tpu.tpu_config.TPUConfig`
    that of tf.contrib.tpu; queues of `tf.train` become those of `tf.compat.v1.train`.
    """
    name = _NOT_IN_V1.sub("tensorflow.", name)
    if _longest(name, contrib_estimators.PRIVATE_TPU_RULES):
        return name
    parts = name.split(".")
    if name.startswith(f"{CONTRIB}.") and "python" in parts[3:4]:
        # contrib.<package>.python.<folders>.<module>.<Name>; modules are in lower case.
        private = _longest(name, contrib_ours.PRIVATE_MODULES)
        if private is not None:
            return contrib_ours.PRIVATE_MODULES[private] + name[len(private) :]
        last = next((i for i, part in enumerate(parts[4:], 4) if part[:1].isupper()), None)
        if last is None:
            # Functions are in lower case, too, but the tables know their names.
            part = ".".join(parts[:3])
            last = next((i for i in range(4, len(parts)) if f"{part}.{parts[i]}" in RULES), None)
        return ".".join(parts[:3] + (parts[last:] if last else []))
    if parts[0] == "tensorflow" and parts[1:3] != ["compat", "v1"]:
        in_v1 = ".".join(["tensorflow", "compat", "v1", *parts[1:]])
        if _longest(in_v1, gone_names.QUEUE_RULES):
            return in_v1
    return name


@functools.lru_cache(maxsize=4096)
def look_up(name: str) -> tuple[str, Advice] | None:
    """Finds the rule for a name."""
    key = _longest(name, RULES)
    if key is not None:
        return key, RULES[key]
    for module in estimators.API_MODULES:
        if name == module or name.startswith(f"{module}."):
            return name, estimators.advice_on(module, name[len(module) + 1 :])
    if name.startswith(f"{contrib_estimators.OURS}."):
        return _not_of_ours(name)
    if name.startswith(f"{contrib_ours.PACKAGE}."):
        return _not_of_our_contrib(name)
    advice = estimators.advice_on_original(name)
    return (name, advice) if advice is not None else None


def _not_of_ours(name: str) -> tuple[str, Advice] | None:
    """Finds advice for a name that our tpu lacks, such as one that only tf.contrib.tpu had."""
    rest = name[len(contrib_estimators.OURS) + 1 :]
    first = rest.partition(".")[0]
    # Contrib's private modules, which an import of ours can't reach.
    private = contrib_estimators.PRIVATE_TPU_RULES.get(f"{CONTRIB}.tpu.python.tpu.{first}")
    if private is not None:
        says = f"{contrib_estimators.OURS} has no {first} of TensorFlow's."
        return f"{contrib_estimators.OURS}.{first}", dataclasses.replace(
            private, says=says, becomes=None
        )
    if first in contrib_estimators.OUR_NAMES or _is_our_module(contrib_estimators.OURS, rest):
        return None
    return _lacking(
        contrib_estimators.OURS, f"{CONTRIB}.tpu", rest, "look for it in tfx_tpu_trainer.estimator"
    )


def _not_of_our_contrib(name: str) -> tuple[str, Advice] | None:
    """Finds advice for a name that our contrib lacks, such as one that only tf.contrib had."""
    part, _, rest = name[len(contrib_ours.PACKAGE) + 1 :].partition(".")
    home = f"{contrib_ours.PACKAGE}.{part}"
    names = contrib_ours.NAMES.get(part)
    old = f"{CONTRIB}.{part}"
    first = rest.partition(".")[0]
    key = _longest(f"{old}.{rest}", RULES)
    gone = key is not None and key.startswith(f"{old}.{first}.") and RULES[key].becomes is None
    if not gone and (not rest or first in (names or "").split() or _is_our_module(home, rest)):
        return None
    if names is None and key == CONTRIB:
        return None
    return _lacking(home, old, rest, RULES[_longest(old, RULES) or CONTRIB].edit or "")


def _lacking(home: str, old: str, rest: str, elsewhere: str) -> tuple[str, Advice]:
    """Names the replacement of a contrib name that this package lacks, or where to look."""
    key = _longest(f"{old}.{rest}", RULES)
    name = rest.partition(".")[0] if key is None or len(key) <= len(old) else key[len(old) + 1 :]
    says = f"{home} has no {name}."
    if key is None or len(key) <= len(old):
        return f"{home}.{name}", Advice("contrib", Verdict.EDIT, says, elsewhere)
    return f"{home}.{name}", dataclasses.replace(RULES[key], says=says)


def _is_our_module(home: str, rest: str) -> bool:
    """Returns whether a name in a package of ours is a module, or is in one."""
    path = PACKAGE_FOLDER.joinpath(*home.split(".")[1:], rest.partition(".")[0])
    return path.is_dir() or path.with_suffix(".py").exists()


def _longest(name: str, rules: Mapping[str, object]) -> str | None:
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in rules), None)


def is_module(name: str) -> bool:
    """Returns whether a full name is a module whose names have their own rules."""
    return any(rule.startswith(f"{name}.") for rule in RULES)

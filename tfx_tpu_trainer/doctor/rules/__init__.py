"""What is known of names: tables, a module for each theme, and how a name is looked up in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tfx_tpu_trainer.doctor.rules import (
    contrib_data,
    contrib_estimator,
    contrib_layers,
    contrib_other,
    contrib_summary,
    contrib_tpu,
    embeddings,
    estimators,
    keras,
    original_package,
    queues,
    tfx,
)
from tfx_tpu_trainer.doctor.rules.advice import Advice

CONTRIB: Final = "tensorflow.contrib"

_CONTRIB_TABLES: Final = (
    contrib_data,
    contrib_estimator,
    contrib_layers,
    contrib_other,
    contrib_summary,
    contrib_tpu,
)
RULES: Final[dict[str, Advice]] = {
    **{name: advice for table in _CONTRIB_TABLES for name, advice in table.RULES.items()},
    **embeddings.RULES,
    **queues.RULES,
    **keras.RULES,
    **tfx.RULES,
}
# Modules that another one stands for, so that an import of the module is all there is to edit.
MODULES: Final = {old: new for table in _CONTRIB_TABLES for old, new in table.MODULES.items()}


def canonical(name: str) -> str:
    """Returns a name as the rules spell it.

    Private paths become the public one, `tensorflow.contrib.tpu.python.tpu.tpu_config.TPUConfig`
    that of tf.contrib.tpu; queues of `tf.train` become those of `tf.compat.v1.train`.

    Args:
        name: A name in full.

    Returns:
        The name in full.
    """
    if name.startswith("tensorflow.compat.v1.contrib"):
        name = name.replace("tensorflow.compat.v1", "tensorflow", 1)
    if _longest(name, contrib_tpu.PRIVATE_MODULES):
        return name
    parts = name.split(".")
    if name.startswith(f"{CONTRIB}.") and "python" in parts[3:4]:
        # contrib.<package>.python.<folders>.<module>.<Name>; modules are in lower case.
        last = next((i for i, part in enumerate(parts[4:], 4) if part[:1].isupper()), None)
        return ".".join(parts[:3] + (parts[last:] if last else []))
    if parts[0] == "tensorflow" and parts[1:3] != ["compat", "v1"]:
        in_v1 = ".".join(["tensorflow", "compat", "v1", *parts[1:]])
        if _longest(in_v1, queues.RULES):
            return in_v1
    return name


def look_up(name: str) -> tuple[str, Advice] | None:
    """Finds the rule for a name.

    Args:
        name: A name in full, as `canonical` gives it.

    Returns:
        The part of the name that the rule speaks of, a prefix, and the advice; `None` where there
        is none.
    """
    key = _longest(name, RULES)
    if key is not None:
        return key, RULES[key]
    for module in estimators.MODULES:
        if name == module or name.startswith(f"{module}."):
            return name, estimators.advice_on(module, name[len(module) + 1 :])
    advice = original_package.advice_on(name)
    return (name, advice) if advice is not None else None


def _longest(name: str, rules: Mapping[str, object]) -> str | None:
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in rules), None)


def is_module(name: str) -> bool:
    """Whether a name in full is a module, names in which have rules of their own."""
    return any(rule.startswith(f"{name}.") for rule in RULES)

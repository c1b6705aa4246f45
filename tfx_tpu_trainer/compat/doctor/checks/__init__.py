"""What is looked for beyond names: arguments, functions that are called with others, ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding
from tfx_tpu_trainer.compat.doctor.checks.context import Context
from tfx_tpu_trainer.compat.doctor.checks.estimators import (
    check_exports,
    check_resolvers,
    check_schedules,
    check_tpu_estimators,
)
from tfx_tpu_trainer.compat.doctor.checks.input_fns import check_input_fns
from tfx_tpu_trainer.compat.doctor.checks.keras import check_keras2
from tfx_tpu_trainer.compat.doctor.checks.legacy_modules import check_legacy_modules
from tfx_tpu_trainer.compat.doctor.checks.model_fns import check_model_fns, check_optimizers
from tfx_tpu_trainer.compat.doctor.checks.python_and_numpy import (
    check_abstract_collections,
    check_numpy_names,
    check_python2,
)
from tfx_tpu_trainer.compat.doctor.checks.tf1_behavior import check_dimensions, check_sessions

_CHECKS: Final = (
    check_dimensions,
    check_exports,
    check_input_fns,
    check_keras2,
    check_legacy_modules,
    check_model_fns,
    check_numpy_names,
    check_optimizers,
    check_abstract_collections,
    check_python2,
    check_resolvers,
    check_schedules,
    check_sessions,
    check_tpu_estimators,
)


def check(context: Context) -> Iterator[Finding]:
    """Makes all checks of a program."""
    for each in _CHECKS:
        yield from each(context)

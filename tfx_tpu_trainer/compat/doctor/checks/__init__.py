"""What is looked for beyond names: arguments, functions that are called with others, ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding
from tfx_tpu_trainer.compat.doctor.checks.context import Context
from tfx_tpu_trainer.compat.doctor.checks.dimensions import check_dimensions
from tfx_tpu_trainer.compat.doctor.checks.exports import check_exports
from tfx_tpu_trainer.compat.doctor.checks.input_fns import check_input_fns
from tfx_tpu_trainer.compat.doctor.checks.keras2 import check_keras2
from tfx_tpu_trainer.compat.doctor.checks.legacy_modules import check_legacy_modules
from tfx_tpu_trainer.compat.doctor.checks.model_fns import check_model_fns
from tfx_tpu_trainer.compat.doctor.checks.numpy_names import check_numpy_names
from tfx_tpu_trainer.compat.doctor.checks.optimizers import check_optimizers
from tfx_tpu_trainer.compat.doctor.checks.python2 import check_abstract_collections, check_python2
from tfx_tpu_trainer.compat.doctor.checks.resolvers import check_resolvers
from tfx_tpu_trainer.compat.doctor.checks.schedules import check_schedules
from tfx_tpu_trainer.compat.doctor.checks.sessions import check_sessions
from tfx_tpu_trainer.compat.doctor.checks.tpu_estimators import check_tpu_estimators

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

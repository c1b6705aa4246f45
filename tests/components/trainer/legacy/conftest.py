"""Makes executions of legacy modules."""

from __future__ import annotations

import pytest

from tests.components.trainer.execution import Execution

TRAINER_FN = "tests.components.trainer.legacy.small.trainer_fn"

CHANGES = {}
"""A test's changes to `small.py`, which each execution imports again."""


@pytest.fixture
def changes():
    """Returns the changes to the small module."""
    yield CHANGES
    CHANGES.clear()


@pytest.fixture
def execution(tmp_path, changes):
    """Makes an execution of the small legacy module; `folder` names its outputs."""

    def make(folder="first", **properties):
        (tmp_path / folder).mkdir()
        given = {"module": None, "label_key": None, "train_batch_size": None}
        return Execution.of_trainer(
            tmp_path / folder, **{**given, "trainer_fn": TRAINER_FN, **properties}
        )

    return make

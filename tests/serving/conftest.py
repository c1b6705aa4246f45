"""Exports that all tests of a session read; what breaks one breaks a copy."""

import pytest

from tests.serving.exports import train_and_export


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that the exporter has put on the TPU as a whole."""
    return train_and_export(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="session")
def exported_in_batches(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that puts its network on the TPU itself, in batches of 2 or 8 rows."""
    return train_and_export(tmp_path_factory.mktemp("batched"), batched=True)

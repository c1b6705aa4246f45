"""What all tests of Keras models share."""

from collections.abc import Iterator

import pytest

from tfx_tpu_trainer.estimator._engine import tf_private


@pytest.fixture(autouse=True, scope="package")
def _quick_keras() -> Iterator[None]:
    """Saves AutoGraph's seconds for the models that Keras itself trains and evaluates."""
    with tf_private.keras_code_unconverted():
        yield

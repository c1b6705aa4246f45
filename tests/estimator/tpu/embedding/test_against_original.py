"""Ours against what `record_original_embeddings.py` recorded of the original."""

import json
from typing import Any

import numpy as np
import pytest

from tests.estimator.tpu.embedding import record_original_embeddings as original_facts
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental

# Enough to know a message by; what follows names values, and ours adds the fix.
_PHRASE = 25


@pytest.fixture(scope="module")
def original() -> dict[str, Any]:
    return json.loads(original_facts.RECORDING.read_text(encoding="utf-8"))


@pytest.mark.behaviour(9, 10, 11, *range(352, 357))
def test_errors_are_of_the_same_type_and_phrase(original, tmp_path):
    ours = original_facts.error_facts(tpu, experimental, tmp_path)
    assert set(ours) == set(original["errors"])
    for name, (kind, message) in original["errors"].items():
        assert ours[name][0] == kind, name
        assert ours[name][1][:_PHRASE] == message[:_PHRASE]


def test_the_arguments_and_their_defaults_are_the_originals(original):
    ours = original_facts.signature_facts(experimental)
    for name, arguments in original["signatures"].items():
        assert set(ours[name]) - _OURS == set(arguments), name
        for argument, default in arguments.items():
            assert _value(ours[name][argument]) == _value(default), (name, argument)


# TensorFlow's configuration of SparseCores is younger than the original.
_OURS = {"sparse_core_embedding_config"}


def _value(text: str) -> Any:
    return float(text) if text[:1].isdigit() else text


@pytest.mark.behaviour(379)
def test_a_run_on_the_host_has_the_originals_numbers(original, tmp_path):
    recorded = original["host"]
    ours = original_facts.host_facts(tpu, experimental, tmp_path)
    assert set(ours["variables"]) == set(recorded["variables"])
    for name, value in recorded["variables"].items():
        np.testing.assert_allclose(ours["variables"][name], value, rtol=2e-5, atol=1e-6)
    for name, value in recorded["metrics"].items():
        np.testing.assert_allclose(ours["metrics"][name], value, rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(ours["predictions"], recorded["predictions"], rtol=2e-5, atol=1e-6)

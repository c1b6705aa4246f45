"""Heads do what the original's did in TensorFlow 2.15.1, as `record_original.py` recorded it."""

import functools
import json
import pathlib
import types
from typing import Any

import pytest
import tf_keras

from tests.estimator.heads import head_cases, head_facts
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.estimator import heads
from tfx_tpu_trainer.estimator.heads import _v1

pytestmark = pytest.mark.matrix

RECORDED = pathlib.Path(__file__).with_name("recorded")
V1_HEADS = types.SimpleNamespace(
    binary=_v1.BinaryClassHead, multi_class=_v1.MultiClassHead, regression=_v1.RegressionHead
)
TOLERANCE = 1e-6

# One case of each kind of head; the others are for `make test-all`.
USUAL = (
    "binary_weights_vocabulary",
    "multi_class_weights_vocabulary_name",
    "multi_label_classes_thresholds_weights",
    "regression_two_weights_per_logit",
    "poisson",
    "logistic",
    "multi_head",
)


def cases(names: Any) -> Any:
    marked = [
        name if name in USUAL else pytest.param(name, marks=pytest.mark.sweep) for name in names
    ]
    return pytest.mark.parametrize("name", marked)


@functools.cache
def recorded(name: str) -> Any:
    return json.loads((RECORDED / name).read_text(encoding="utf-8"))


def compare(ours: Any, theirs: Any) -> None:
    ours = dict(head_facts.flattened(json.loads(json.dumps(ours))))
    theirs = dict(head_facts.flattened(theirs))
    assert ours.keys() == theirs.keys()
    wrong = {}
    for path, value in theirs.items():
        expected = value
        if isinstance(value, float):
            expected = pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE)
        if ours[path] != expected:
            wrong[path] = (ours[path], value)
    assert not wrong


@cases(head_cases.CASES)
def test_a_heads_modes_are_the_originals(name: str) -> None:
    case = head_cases.CASES[name]
    theirs = dict(recorded("heads.json")["heads"][name])
    del theirs["eager"]
    compare(head_facts.head_facts(case.head(heads), case), theirs)


@pytest.mark.parametrize("name", head_cases.CASES)
def test_a_heads_methods_are_the_originals_when_called_eagerly(name: str) -> None:
    case = head_cases.CASES[name]
    recorded_head = recorded("heads.json")["heads"][name]
    theirs = recorded_head["eager"]
    if name.startswith("multi_head"):
        # Eagerly, the original's MultiHead counts only the last batch; in a graph it counts all.
        theirs = {**theirs, "metrics": recorded_head["eval"]["metrics"]}
    compare(head_facts.eager_facts(case.head(heads), case), theirs)


@cases(head_cases.V1_CASES)
def test_a_v1_heads_modes_are_the_originals(name: str) -> None:
    case = head_cases.V1_CASES[name]
    theirs = recorded("v1_heads.json")["heads"][name]
    compare(head_facts.head_facts(case.head(V1_HEADS), case), theirs)


@cases(head_facts.OPTIMIZERS)
def test_an_estimator_with_a_head_trains_as_the_originals(name: str, tmp_path: Any) -> None:
    api = types.SimpleNamespace(
        Estimator=estimator.Estimator, BinaryClassHead=heads.BinaryClassHead
    )
    ours = head_facts.trained_facts(api, tf_keras.optimizers.legacy, name, str(tmp_path))
    compare(ours, recorded("trained.json")["optimizers"][name])

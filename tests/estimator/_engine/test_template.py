from __future__ import annotations

import collections

import pytest

from tfx_tpu_trainer.estimator._engine.template import HostFunction


def _digits(first, second):
    return 10 * first + second


@pytest.mark.behaviour(195)
def test_a_sequence_is_passed_by_position():
    assert HostFunction("eval_metrics", _digits, [4, 2])() == 42
    assert HostFunction("eval_metrics", _digits, (4, 2))() == 42


@pytest.mark.behaviour(196)
def test_a_mapping_is_passed_by_keyword():
    tensors = collections.OrderedDict(second=2, first=4)
    assert HostFunction("host_call", _digits, tensors)() == 42


@pytest.mark.behaviour(197)
def test_keys_that_the_function_does_not_take_are_a_type_error():
    with pytest.raises(TypeError, match="third"):
        HostFunction("eval_metrics", _digits, {"first": 1, "third": 3})()

from __future__ import annotations

import math

import pytest
import tensorflow as tf

from tests.estimator.schedule.plain import Recorder
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1


def _input_fn():
    return None


@pytest.mark.behaviour(401)
def test_a_train_spec_keeps_its_arguments():
    hook, listener = v1.train.SessionRunHook(), v1.train.CheckpointSaverListener()
    spec = tfe.TrainSpec(_input_fn, max_steps=7, hooks=[hook], saving_listeners=[listener])
    assert spec == (_input_fn, 7, (hook,), (listener,))
    assert tfe.TrainSpec(_input_fn) == (_input_fn, None, (), ())


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"input_fn": "data"}, TypeError, "`input_fn` must be callable, given: 'data'"),
        ({"max_steps": 0}, ValueError, "Must specify max_steps > 0, given: 0"),
        ({"max_steps": -1}, ValueError, "max_steps > 0, given: -1"),
        ({"max_steps": math.nan}, ValueError, "max_steps > 0, given: nan"),
        ({"max_steps": "9"}, TypeError, "max_steps must be a number; got '9'"),
        ({"hooks": [1]}, TypeError, "All hooks must be `SessionRunHook` instances, given: 1"),
        ({"saving_listeners": [1]}, TypeError, "CheckpointSaverListener` instances, given: 1"),
    ],
)
@pytest.mark.behaviour(401)
def test_a_train_spec_is_checked(arguments, error, says):
    with pytest.raises(error, match=says):
        tfe.TrainSpec(**{"input_fn": _input_fn, **arguments})


@pytest.mark.behaviour(402)
def test_an_eval_spec_has_defaults():
    spec = tfe.EvalSpec(_input_fn)
    assert spec == (_input_fn, 100, None, (), (), 120, 600)
    exporter = Recorder()
    assert tfe.EvalSpec(_input_fn, steps=None, exporters=exporter).exporters == (exporter,)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"input_fn": 3}, TypeError, "`input_fn` must be callable, given: 3"),
        ({"steps": 0}, ValueError, "Must specify steps > 0, given: 0"),
        ({"name": 5}, TypeError, "`name` must be string, given: 5"),
        ({"hooks": ["h"]}, TypeError, "given: 'h'"),
        ({"start_delay_secs": -1}, ValueError, "start_delay_secs >= 0, given: -1"),
        ({"steps": "9"}, TypeError, "steps must be a number; got '9'"),
        ({"throttle_secs": "9"}, TypeError, "throttle_secs must be a number; got '9'"),
        ({"throttle_secs": -2}, ValueError, "throttle_secs >= 0, given: -2"),
    ],
)
@pytest.mark.behaviour(402)
def test_an_eval_spec_is_checked(arguments, error, says):
    with pytest.raises(error, match=says):
        tfe.EvalSpec(**{"input_fn": _input_fn, **arguments})


@pytest.mark.behaviour(403)
def test_exporters_may_be_one_several_or_none():
    first, second = Recorder("a"), Recorder("b")
    for given, kept in [
        (None, ()),
        ([], ()),
        (first, (first,)),
        ([first, second], (first, second)),
    ]:
        assert tfe.EvalSpec(_input_fn, exporters=given).exporters == kept
    assert tfe.EvalSpec(_input_fn, exporters=iter([first])).exporters == (first,)


@pytest.mark.parametrize(
    ("exporters", "error", "says"),
    [
        (5, TypeError, "an iterable of Exporter, or `None`; got 5"),
        ("abc", TypeError, "got 'abc'"),
        ([Recorder("a"), 7], TypeError, "got 7 among them"),
        ([Recorder("a"), Recorder("a")], ValueError, r"unique names.*\['a', 'a'\]"),
        (Recorder(""), ValueError, "`None` or empty"),
        (Recorder(None), ValueError, "`None` or empty"),
        (Recorder(4), ValueError, "must have a string name. Given: 4"),
    ],
)
@pytest.mark.behaviour(403)
def test_exporters_are_checked(exporters, error, says):
    with pytest.raises(error, match=says):
        tfe.EvalSpec(_input_fn, exporters=exporters)

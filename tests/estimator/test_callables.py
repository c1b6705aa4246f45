from __future__ import annotations

import functools

import pytest

from tfx_tpu_trainer.estimator.callables import argument_names, check_model_fn, takes_varargs


class _Model:
    def method(self, features, labels):
        raise NotImplementedError

    def __call__(self, features, mode):
        raise NotImplementedError


def _full(features, labels, mode, params, config):
    raise NotImplementedError


def _bound(rate, features, labels, *, mode, layers=2):
    raise NotImplementedError


def _open(features, *args, mode=None, **kwargs):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (_full, ("features", "labels", "mode", "params", "config")),
        (lambda features: None, ("features",)),
        (_Model().method, ("features", "labels")),
        (_Model(), ("features", "mode")),
        (functools.partial(_bound, 0.1), ("features", "labels", "mode", "layers")),
        (functools.partial(_bound, 0.1, layers=3), ("features", "labels", "mode")),
        (
            functools.partial(functools.partial(_bound, 0.1), layers=3),
            ("features", "labels", "mode"),
        ),
        (functools.partial(_bound, rate=0.1, layers=3), ("features", "labels", "mode")),
        (_open, ("features", "mode")),
    ],
)
def test_b18_the_arguments_that_a_caller_can_give(function, names):
    assert argument_names(function) == names


@pytest.mark.parametrize("value", [None, 3, "model_fn"])
def test_b17_what_is_not_callable_is_a_type_error(value):
    with pytest.raises(TypeError, match="is not callable"):
        argument_names(value)


def test_varargs_are_seen_through_partials():
    assert takes_varargs(_open)
    assert takes_varargs(functools.partial(_open, 1))
    assert not takes_varargs(_full)


@pytest.mark.parametrize("function", [_full, _Model(), _Model().method, lambda features: None])
def test_b18_model_fns_that_hold(function):
    check_model_fn(function, None)


@pytest.mark.parametrize(
    ("function", "params", "says"),
    [
        (lambda labels: None, None, "must include features argument.*labels"),
        (lambda features, rate: None, None, r"not expected args: \['rate'\]"),
        (lambda features, b, a: None, None, r"not expected args: \['a', 'b'\]"),
        (lambda features: None, {"rate": 1}, "does not include params argument.*'rate': 1"),
    ],
    ids=["b13_no_features", "b14_unexpected", "b14_all_listed", "b15_no_params"],
)
def test_b13_b14_b15_model_fns_that_do_not_hold(function, params, says):
    with pytest.raises(ValueError, match=says):
        check_model_fn(function, params)

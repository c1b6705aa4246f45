import functools

import pytest

from tfx_tpu_trainer.estimator._user_calls import (
    argument_names,
    call_with,
    check_model_fn,
    positional_names,
    takes_varargs,
)


def _decorated(function):
    @functools.wraps(function)
    def decorator(*args, **kwargs):
        return function(*args, **kwargs)

    return decorator


def _decorated_without_params(function):
    @functools.wraps(function)
    def decorator(features, labels, mode, params):
        del params
        return function(features, labels, mode)

    return decorator


class _Decorator:
    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)


class _Model:
    def method(self, features, labels):
        raise NotImplementedError

    @_decorated
    def decorated(self, mode, features, labels):
        return features, labels, mode

    @classmethod
    def of_class(cls, labels, features, mode):
        return features, labels, mode

    @staticmethod
    def static(labels, features, mode):
        return features, labels, mode

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
        (_Model().decorated, ("mode", "features", "labels")),
        (_decorated(_full), ("features", "labels", "mode", "params", "config")),
        (_Decorator(_full), ("features", "labels", "mode", "params", "config")),
        # What a decorator names itself is what it takes, whatever it decorates.
        (_decorated_without_params(_full), ("features", "labels", "mode", "params")),
    ],
)
@pytest.mark.behaviour(18)
def test_the_arguments_that_a_caller_can_give(function, names):
    assert argument_names(function) == names


def _three(features, labels, mode):
    return features, labels, mode


def _keyword_only(features, *, mode, labels, hidden=4):
    del hidden
    return features, labels, mode


def _positional_only(mode, features, /, labels):
    return features, labels, mode


def _with_default_between(features, rate=0.1, labels=None, /, mode=None):
    assert rate == 0.1
    return features, labels, mode


@pytest.mark.parametrize(
    "function",
    [
        lambda mode, features, labels: (features, labels, mode),
        _keyword_only,
        _positional_only,
        _with_default_between,
        functools.partial(_three),
        functools.partial(lambda rate, labels, features, mode: (features, labels, mode), 0.1),
        _Model().decorated,
        _Model.of_class,
        _Model.static,
        _decorated(_three),
        _decorated(_decorated(_keyword_only)),
        _decorated_without_params(_three),
        _Decorator(_three),
        functools.lru_cache(_three),
        functools.partial(_decorated(_three), mode="train"),
        lambda *, mode, **rest: (rest["features"], rest["labels"], mode),
        lambda features, mode, **rest: (features, rest["labels"], mode),
        lambda *args, **kwargs: (kwargs["features"], kwargs["labels"], kwargs["mode"]),
    ],
)
@pytest.mark.behaviour(148)
def test_arguments_go_by_name_whatever_their_order_and_kind(function):
    available = {"config": 5, "params": 4, "mode": "train", "labels": 2, "features": 1}
    assert call_with(function, available, required=("features", "labels")) == (1, 2, "train")


@pytest.mark.behaviour(148)
def test_the_keywords_of_a_function_that_names_what_it_must_take_stay_empty():
    """The original passes nothing in `**kwargs`: a model_fn may pass them on to its network."""
    seen = call_with(
        lambda features, labels, **rest: rest,
        {"features": 1, "labels": 2, "mode": "train"},
        required=("features", "labels"),
    )
    assert seen == {}


def test_arguments_with_names_alone_are_not_counted_as_positions():
    assert positional_names(_keyword_only) == ("features",)
    assert positional_names(_positional_only) == ("mode", "features", "labels")


@pytest.mark.parametrize("value", [None, 3, "model_fn"])
@pytest.mark.behaviour(17)
def test_what_is_not_callable_is_a_type_error(value):
    with pytest.raises(TypeError, match="is not callable"):
        argument_names(value)


@pytest.mark.parametrize("value", [None, 3, "model_fn"])
def test_a_model_fn_that_is_not_callable_is_named(value):
    with pytest.raises(TypeError, match=f"^model_fn must be callable, given: {value!r}\\.$"):
        check_model_fn(value, None)


def test_varargs_are_seen_through_partials():
    assert takes_varargs(_open)
    assert takes_varargs(functools.partial(_open, 1))
    assert not takes_varargs(_full)


@pytest.mark.parametrize(
    "function",
    [
        _full,
        _Model(),
        _Model().method,
        lambda features: None,
        _keyword_only,
        _open,
        _decorated(_full),
    ],
)
@pytest.mark.behaviour(18)
def test_model_fns_that_hold(function):
    check_model_fn(function, None)


@pytest.mark.parametrize(
    ("function", "params", "says"),
    [
        (lambda labels: None, None, "must include features argument.*labels"),
        (lambda features, rate: None, None, r"not expected args: \['rate'\]"),
        (lambda features, b, a: None, None, r"not expected args: \['a', 'b'\]"),
        (lambda features, *, rate: None, None, r"not expected args: \['rate'\]"),
        (lambda features: None, {"rate": 1}, "does not include params argument.*'rate': 1"),
        (lambda features: None, {}, "does not include params argument"),
    ],
    ids=[
        "b13_no_features",
        "b14_unexpected",
        "b14_all_listed",
        "b14_keyword_without_default",
        "b15_no_params",
        "b15_empty_params",
    ],
)
@pytest.mark.behaviour(13, 14, 15)
def test_model_fns_that_do_not_hold(function, params, says):
    with pytest.raises(ValueError, match=says):
        check_model_fn(function, params)

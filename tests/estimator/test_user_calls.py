import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.estimator import EstimatorSpec
from tfx_tpu_trainer.estimator._user_calls import call_input_fn, call_model_fn
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec


def _given(function):
    """What call_input_fn gives to a function."""
    return call_input_fn(function, mode="train", params={"a": [1]}, config={"b": [2]})


def _spec(**fields):
    return EstimatorSpec("infer", predictions=tf.constant([1.0]), **fields)


def _call_model(model_fn, labels=None, **changes):
    given = {"mode": "infer", "params": {"a": [1]}, "config": {"b": [2]}, **changes}
    return call_model_fn(model_fn, features={"x": 1}, labels=labels, **given)


@pytest.mark.parametrize(
    ("input_fn", "given"),
    [
        (lambda: None, None),
        (lambda mode: mode, "train"),
        (lambda params: params, {"a": [1]}),
        (lambda config, params: (config, params), ({"b": [2]}, {"a": [1]})),
        (lambda params, input_context="absent": input_context, "absent"),
    ],
)
@pytest.mark.behaviour(112)
def test_an_input_fn_gets_the_arguments_that_it_takes(input_fn, given):
    assert _given(input_fn) == given


@pytest.mark.behaviour(115)
def test_an_input_fn_runs_on_the_hosts_cpu():
    with tf.Graph().as_default():
        assert _given(lambda: tf.constant(1)).device == "/device:CPU:0"


def _yields():
    yield {"x": 1}


@pytest.mark.parametrize(
    "input_fn",
    [
        case(
            "estimator",
            "an input_fn that yields",
            "input_fn should return a Dataset or (features, labels), but <function _yields",
            "yields: let it return tf.data.Dataset.from_generator(",
            values=_yields,
        ),
        case(
            "estimator",
            "an input_fn that returns a function",
            "input_fn should return a Dataset or (features, labels), but ",
            "returns the function <function _yields",
            "give that one as input_fn",
            values=lambda: _yields,
        ),
    ],
)
def test_an_input_fn_that_yields_or_returns_a_function_is_refused(input_fn, refused):
    with refused(TypeError):
        _given(input_fn)


@pytest.mark.parametrize("name", ["params", "config"])
@pytest.mark.behaviour(113, 147)
def test_changes_to_params_and_config_go_nowhere(name):
    given = {"deep": [1]}

    def changes_it(features=None, *, params=None, config=None):
        (params or config)["deep"].append(2)
        with tf.Graph().as_default():
            return _spec()

    arguments = {"params": {}, "config": {}, "mode": "train", name: given}
    call_input_fn(changes_it, **arguments)
    call_model_fn(changes_it, features=1, labels=None, **arguments)
    assert given == {"deep": [1]}


@pytest.mark.behaviour(148)
def test_a_model_fn_gets_the_arguments_that_it_takes():
    seen = []

    def minimal(features):
        seen.append(features)
        return _spec()

    def full(features, labels, mode, params, config):
        seen.append((features, labels, mode, params, config))
        return _spec()

    with tf.Graph().as_default():
        _call_model(minimal)
        _call_model(full, labels=3)
        _call_model(full)
    everything = ("infer", {"a": [1]}, {"b": [2]})
    assert seen == [{"x": 1}, ({"x": 1}, 3, *everything), ({"x": 1}, None, *everything)]


@pytest.mark.behaviour(145)
@row(
    "estimator",
    "labels for a model_fn that takes none",
    "model_fn does not take labels, but input_fn returns la",
)
def test_labels_that_model_fn_does_not_take_are_refused_before_it_is_called(refused):
    def never_called(features):
        raise AssertionError

    with refused(ValueError):
        _call_model(never_called, labels={"y": 1})


@row(
    "estimator",
    "a model_fn that returns the class EstimatorSpec",
    "model_fn should return an EstimatorSpec. Got <class ",
    "make one by calling the class, with the mode and what it needs.",
)
@pytest.mark.parametrize("spec", [EstimatorSpec, TPUEstimatorSpec])
def test_a_spec_class_is_no_spec(spec, refused):
    with refused(ValueError):
        _call_model(lambda features: spec)


@pytest.mark.parametrize("returned", [None, {"loss": 1}, tf.no_op, "spec"])
@pytest.mark.behaviour(150)
@row(
    "estimator",
    "a model_fn that returns None, a dict, an op or a text",
    "model_fn should return an EstimatorSpec. Got ",
    "an EstimatorSpec or TPUEstimatorSpec of",
)
def test_what_is_no_spec_is_refused(returned, refused):
    with refused(ValueError):
        _call_model(lambda features: returned)


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        ("train", r"TPUEstimator\(train_batch_size=...\) adds it to params\.$"),
        ("eval", r"TPUEstimator\(eval_batch_size=...\) adds it to params\.$"),
        (
            "infer",
            r"TPUEstimator\(predict_batch_size=...\) adds .*, but not for an export.*tf\.shape",
        ),
    ],
)
@pytest.mark.behaviour(380)
def test_a_batch_size_that_nobody_gave_is_explained_to_either_function(mode, advice):
    says = rf"looked up 'batch_size', which does not exist: .*params has \['use_tpu'\]\. {advice}"
    params = {"use_tpu": False}
    with pytest.raises(KeyError, match=f"^input_fn {says}"):
        call_input_fn(lambda params: params["batch_size"], mode=mode, params=params, config=None)
    with pytest.raises(KeyError, match=f"^model_fn {says}"):
        _call_model(lambda features, params: params["batch_size"], mode=mode, params=params)


@pytest.mark.behaviour(380)
def test_a_param_that_a_plain_estimator_lacks_is_to_be_given_in_its_params():
    says = r"params has \['a'\]\. Give it in the params of the estimator\.$"
    with pytest.raises(KeyError, match=says):
        _call_model(lambda features, params: params["batch_size"])


_OF_THE_PROGRAM = {"other": 1}


def _of_a_copy(features):
    features = dict(features)
    return features.pop("z")


def _by_name(features):
    for name in ("x", "z"):
        features[name]


def _of_its_own(features):
    return _OF_THE_PROGRAM["z"]


def _of_its_own_by_the_features(features):
    return [_OF_THE_PROGRAM["z"] for name in features]


def _of_a_name_in_the_text(features):
    return {}[features["x"] and "z"]


@pytest.mark.parametrize("model_fn", [_of_a_copy, _by_name])
@pytest.mark.behaviour(380)
def test_a_feature_that_is_not_there_is_named_with_those_that_are(model_fn):
    says = r"^model_fn looked up 'z', which does not exist: features has \['x'\].*another structure"
    with pytest.raises(KeyError, match=says):
        _call_model(model_fn)


@pytest.mark.parametrize(
    "model_fn", [_of_its_own, _of_its_own_by_the_features, _of_a_name_in_the_text]
)
@pytest.mark.behaviour(380)
def test_a_key_of_a_dict_of_the_programs_own_is_not_taken_for_a_feature(model_fn):
    with pytest.raises(KeyError, match=r"^'z'$"):
        _call_model(model_fn)


@pytest.mark.behaviour(380)
def test_a_key_that_an_input_fn_lacks_elsewhere_is_not_taken_for_a_param():
    with pytest.raises(KeyError, match=r"^'column'$"):
        _given(lambda params: {}["column"])


@pytest.mark.behaviour(380)
def test_errors_come_out_with_their_own_type():
    def fails(features=None):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _call_model(fails)
    with pytest.raises(ZeroDivisionError):
        _given(fails)

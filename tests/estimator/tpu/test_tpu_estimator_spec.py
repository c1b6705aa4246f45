import functools

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.estimator import EstimatorSpec
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import make_host_scaffold

v1 = tf.compat.v1
HOOK_FIELDS = ("training_hooks", "evaluation_hooks", "prediction_hooks")


@pytest.fixture(autouse=True)
def _graph():
    with tf.Graph().as_default():
        yield


def _two(first, second):
    return {"m": v1.metrics.mean(first * second)}


def _spec(mode: str | None = "eval", **fields) -> TPUEstimatorSpec:
    given = {"loss": tf.constant(1.0), "train_op": tf.no_op(), "predictions": tf.constant([1.0])}
    return TPUEstimatorSpec(mode, **{**given, **fields})


def _template_of(spec: TPUEstimatorSpec, mode: str = "eval"):
    return spec.as_template(mode=mode, features=None, labels=None)


_HOST_FUNCTIONS = [
    case(
        "estimator", f"`eval_metrics` or a `host_call` that is {given}", says, values=(pair, error)
    )
    for given, pair, error, says in (
        ("a function alone", _two, ValueError, "should be tuple or list (function, tensors); got"),
        ("a dict", {"function": _two}, ValueError, "should be tuple or list (function, tensors)"),
        (
            "a tuple of one",
            (_two,),
            ValueError,
            "should have two elements, (function, tensors); got 1",
        ),
        (
            "a tuple of three",
            (_two, [1], 3),
            ValueError,
            "should have two elements, (function, tensors)",
        ),
        ("a name with tensors", ("two", [1, 2]), TypeError, "[0] should be callable; got 'two'"),
        (
            "a function with a number",
            (_two, 1),
            ValueError,
            "[1] should be tuple or list, or dict; got 1",
        ),
        (
            "a function with a text",
            (_two, "ab"),
            ValueError,
            "[1] should be tuple or list, or dict",
        ),
        (
            "a function with too few tensors",
            (_two, [1]),
            RuntimeError,
            "length of tensors 1 does not match method args of the function, which takes 2: ['first'",
        ),
        (
            "a function with too many tensors",
            (_two, (1, 2, 3)),
            RuntimeError,
            "length of tensors 3 does not match method args of the function, which takes 2",
        ),
        (
            "a partial with too many tensors",
            (functools.partial(_two, 1), [1, 2]),
            RuntimeError,
            "length of tensors 2 does not match method args of the function, which takes 1",
        ),
    )
]


@pytest.mark.parametrize("field", ["eval_metrics", "host_call"])
@pytest.mark.parametrize(("pair", "error"), _HOST_FUNCTIONS)
@pytest.mark.behaviour(298, 299)
def test_host_functions_are_checked_at_once(field, pair, error, refused):
    with refused(error) as raised:
        _spec(**{field: pair})
    assert field in str(raised.value)


@pytest.mark.parametrize("field", ["eval_metrics", "host_call"])
@pytest.mark.parametrize(("pair", "error"), _HOST_FUNCTIONS)
def test_host_functions_of_a_replaced_field_are_checked_when_they_are_used(
    field, pair, error, refused
):
    spec = _spec()._replace(**{field: pair})
    with refused(error):
        spec.as_estimator_spec()


@pytest.mark.parametrize("field", ["eval_metrics", "host_call"])
@pytest.mark.parametrize(
    "pair",
    [
        (_two, [1, 2]),
        [_two, (1, 2)],
        (lambda *tensors: {}, [1, 2, 3]),
        (functools.partial(_two, 1), [2]),
        (_two, {"any": 1}),
    ],
    ids=["list", "tuple", "b299_varargs", "partial", "b300_dict"],
)
@pytest.mark.behaviour(298, 299, 300)
def test_host_functions_that_hold(field, pair):
    assert getattr(_spec(**{field: pair}), field) is pair


@pytest.mark.parametrize("field", HOOK_FIELDS)
@pytest.mark.behaviour(297)
@row("estimator", "hooks of a TPUEstimatorSpec that are none", "must be SessionRunHook instances")
def test_hooks_must_be_session_run_hooks(field, refused):
    with refused(TypeError):
        _spec(**{field: [3]})


@pytest.mark.behaviour(*range(292, 308))
def test_the_fields_are_made_what_they_must_be():
    spec = _spec("infer", loss=tf.constant([1.0]), predictions={"p": tf.constant([1.0])})
    assert spec.loss.shape == []
    assert list(spec.export_outputs) == ["serving_default"]
    assert _spec("eval", predictions=None).predictions == {}


@pytest.mark.parametrize(
    ("mode", "missing"), [("train", "loss"), ("eval", "loss"), ("infer", "predictions")]
)
@pytest.mark.behaviour(301)
def test_a_template_has_what_its_mode_needs_whatever_the_spec_was_made_for(mode, missing):
    with pytest.raises(ValueError, match=f"Missing {missing}"):
        _template_of(_spec(None, **{missing: None}), mode)


@pytest.mark.behaviour(301)
def test_without_a_mode_nothing_is_required():
    assert TPUEstimatorSpec(None).as_estimator_spec().mode is None


@pytest.mark.behaviour(302)
def test_as_estimator_spec_calls_the_host_functions_and_the_scaffold_fn():
    scaffold, hook = v1.train.Scaffold(), v1.train.SessionRunHook()
    called = tf.constant(5)
    spec = _spec(
        eval_metrics=(_two, [tf.constant(2.0), tf.constant(3.0)]),
        host_call=(lambda value: value, {"value": called}),
        scaffold_fn=lambda: scaffold,
        **{field: [hook] for field in HOOK_FIELDS},
    )
    plain = spec.as_estimator_spec()
    assert isinstance(plain, EstimatorSpec)
    assert plain.scaffold is scaffold
    assert list(plain.eval_metric_ops) == ["m"]
    assert plain.loss is spec.loss
    assert plain.predictions is spec.predictions
    for field in HOOK_FIELDS:
        first, host_call_hook = getattr(plain, field)
        assert first is hook
        assert host_call_hook.before_run(None).fetches is called


@pytest.mark.behaviour(303)
def test_a_second_spec_leaves_the_first_ones_host_functions_alone():
    first = _spec(eval_metrics=(_two, [tf.constant(1.0), tf.constant(1.0)]))
    _spec(eval_metrics=(lambda x: {"other": v1.metrics.mean(x)}, [tf.constant(1.0)]))
    assert list(first.as_estimator_spec().eval_metric_ops) == ["m"]


def test_host_functions_are_not_called_by_the_template():
    def never_called(tensor):
        raise AssertionError

    pair = (never_called, [tf.constant(1.0)])
    template = _spec(eval_metrics=pair, host_call=pair).as_template(
        mode="eval", features=1, labels=2
    )
    assert (template.features, template.labels) == (1, 2)
    assert template.eval_metrics.tensors is pair[1]
    assert template.host_call.function is never_called


@pytest.mark.parametrize(
    ("mode", "field"), zip(("train", "eval", "infer"), HOOK_FIELDS), ids=HOOK_FIELDS
)
@pytest.mark.behaviour(258)
def test_a_template_has_the_hooks_of_its_mode(mode, field):
    hooks = {name: [v1.train.SessionRunHook()] for name in HOOK_FIELDS}
    template = _template_of(_spec(mode, **hooks), mode)
    assert template.hooks == tuple(hooks[field])


@pytest.mark.behaviour(265)
def test_scaffold_fn_is_called_once_it_is_needed():
    made = []

    def scaffold_fn():
        made.append(v1.train.Scaffold())
        return made[-1]

    template = _template_of(_spec(scaffold_fn=scaffold_fn))
    assert made == []
    assert template.make_scaffold() is made[0]


@pytest.mark.parametrize("scaffold_fn", [None, lambda: None])
@pytest.mark.behaviour(266)
def test_a_default_scaffold_is_used_on_the_host(scaffold_fn):
    template = _template_of(_spec(scaffold_fn=scaffold_fn))
    assert isinstance(template.make_scaffold(), v1.train.Scaffold)


@pytest.mark.behaviour(309)
def test_a_spec_is_a_named_tuple():
    spec = _spec()
    assert spec._replace(mode="train").mode == "train"
    assert isinstance(spec._replace(mode="train"), TPUEstimatorSpec)
    assert spec._fields[0] == "mode"


def _make(scaffold_fn):
    with fresh_graph():
        rows = v1.placeholder(tf.float32, [2])
        weight = v1.get_variable("weight", initializer=1.0)
        loss = tf.reduce_sum(rows * weight)
        return make_host_scaffold(lambda: scaffold_fn(weight, loss), [rows, None])


@pytest.mark.parametrize(
    "scaffold_fn",
    [
        lambda weight, loss: v1.train.Scaffold(),
        lambda weight, loss: v1.train.Scaffold(saver=v1.train.Saver([weight])),
        lambda weight, loss: v1.train.Scaffold(local_init_op=weight.assign(2.0)),
        lambda weight, loss: v1.train.Scaffold(init_fn=lambda *_: None),
    ],
)
@pytest.mark.behaviour(265)
def test_what_needs_no_core_is_used(scaffold_fn):
    assert isinstance(_make(scaffold_fn), v1.train.Scaffold)


@pytest.mark.parametrize(
    "scaffold_fn",
    [
        lambda weight, loss: v1.train.Scaffold(summary_op=tf.strings.as_string(loss)),
        lambda weight, loss: v1.train.Scaffold(local_init_op=weight.assign(loss)),
        lambda weight, loss: v1.train.Scaffold(init_op=loss.op),
        lambda weight, loss: [tf.identity(loss), v1.train.Scaffold()][1],
    ],
)
@pytest.mark.behaviour(267)
@row(
    "estimator",
    "a scaffold_fn with ops of a core",
    "scaffold_fn: op ",
    "depends on TPU computation",
)
def test_what_depends_on_a_core_is_refused(scaffold_fn, refused):
    with refused(ValueError):
        _make(scaffold_fn)


@row(
    "estimator",
    "a scaffold_fn that returns no Scaffold",
    "scaffold_fn must return a tf.compat.v1.train.Scaffold. Given: 5.",
)
def test_what_is_no_scaffold_is_refused(refused):
    with refused(TypeError):
        _make(lambda weight, loss: 5)


@row("estimator", "`scaffold_fn=5`", "scaffold_fn must be callable, given: 5.")
def test_a_scaffold_fn_that_is_not_callable_is_refused(refused):
    with refused(TypeError):
        _spec(scaffold_fn=5)


@pytest.mark.parametrize("field", ["eval_metrics", "host_call"])
@pytest.mark.parametrize(
    ("tensors", "named"), [(["x"], "'x'"), ({"any": 5}, "5"), ({"any": None}, "None")]
)
@row(
    "estimator",
    "values of a host_call or of eval_metrics that are no tensors, on cores",
    "[1] must hold tensors, given: ",
    "functools.partial",
)
def test_cores_send_tensors_only(field, tensors, named, refused):
    spec = _spec(**{field: (lambda any: {}, tensors)})
    spec.as_estimator_spec()
    with refused(TypeError) as raised:
        spec.as_template(mode="eval", features={}, labels=None)
    assert str(raised.value).startswith(f"{field}[1] must hold tensors, given: {named}.")


@pytest.mark.behaviour(266)
@row(
    "estimator",
    "a scaffold_fn that returns nothing",
    "scaffold_fn returns None, which is not allowed",
)
def test_none_is_refused(refused):
    with refused(ValueError):
        _make(lambda weight, loss: None)

import re

import pytest
import tensorflow as tf
import tf_keras

from tests.bad_input import row
from tfx_tpu_trainer.estimator import EstimatorSpec
from tfx_tpu_trainer.estimator.export import PredictOutput

v1 = tf.compat.v1
HOOK_FIELDS = ("training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks")


@pytest.fixture(autouse=True)
def _graph():
    with tf.Graph().as_default():
        yield


def _elsewhere(make):
    """What `make` gives in another graph."""
    with tf.Graph().as_default():
        return make()


def _loss():
    return tf.constant(1.0, name="a_loss")


def _sparse():
    return tf.sparse.from_dense([0, 1])


def _ragged():
    return tf.ragged.constant([[1.0], [2.0, 3.0]])


@pytest.mark.parametrize(
    ("mode", "fields", "missing"),
    [
        ("train", lambda: {"loss": _loss()}, "train_op"),
        ("train", lambda: {"train_op": tf.no_op()}, "loss"),
        ("eval", dict, "loss"),
        ("infer", dict, "predictions"),
    ],
)
@pytest.mark.behaviour(292)
@row(
    "estimator",
    "a spec without loss, train_op or predictions, where its mode needs them",
    "Missing ",
)
def test_what_a_mode_needs(mode, fields, missing, refused):
    with refused(ValueError) as raised:
        EstimatorSpec(mode, **fields())
    assert re.search(f"Missing {missing}\\.", str(raised.value))


@pytest.mark.parametrize("make", [lambda: 1.0, lambda: [1.0], _sparse, _ragged, tf.no_op])
@pytest.mark.behaviour(293)
@row("estimator", "a loss that is not a tensor", "loss must be Tensor")
def test_loss_must_be_a_tensor(make, refused):
    with refused(TypeError):
        EstimatorSpec("eval", loss=make())


@pytest.mark.parametrize("value", ["0.5", True, 1j])
@row(
    "estimator",
    "a loss that is a tensor of texts",
    "loss must be of a type of numbers, such as float32, given: ",
)
def test_loss_must_be_a_number(value, refused):
    with refused(TypeError):
        EstimatorSpec("eval", loss=tf.constant(value))


@pytest.mark.parametrize("shape", [[2], [1, 2], [0]])
@pytest.mark.behaviour(293)
@row("estimator", "a loss of several elements", "Loss must be scalar")
def test_loss_must_have_one_element(shape, refused):
    with refused(ValueError):
        EstimatorSpec("eval", loss=tf.zeros(shape))


@pytest.mark.parametrize("shape", [[1], [1, 1], None])
@pytest.mark.behaviour(293)
def test_one_element_is_reshaped_to_a_scalar(shape):
    loss = v1.placeholder_with_default(tf.fill(shape or [1], 3.0), shape)
    spec = EstimatorSpec("eval", loss=loss)
    with v1.Session() as session:
        assert session.run(spec.loss) == 3
    assert spec.loss.shape == []


@pytest.mark.parametrize("make", [lambda: 1, lambda: "train", lambda: [1.0], _sparse])
@pytest.mark.behaviour(294)
@row("estimator", "a train_op that is not an op", "train_op must be Operation or Tensor")
def test_train_op_must_be_an_op_or_a_tensor(make, refused):
    with refused(TypeError):
        EstimatorSpec("train", loss=_loss(), train_op=make())


@pytest.mark.parametrize("make", [tf.no_op, _loss, lambda: v1.Variable(1.0, use_resource=True)])
@pytest.mark.behaviour(294)
def test_ops_tensors_and_variables_are_train_ops(make):
    EstimatorSpec("train", loss=_loss(), train_op=make())


@pytest.mark.parametrize("make", [lambda: 1.0, _sparse, _ragged, lambda: [_loss()]])
@pytest.mark.behaviour(295)
def test_predictions_must_be_tensors(make):
    with pytest.raises(TypeError, match=r"^predictions must be Tensor, given: "):
        EstimatorSpec("infer", predictions=make())
    with pytest.raises(TypeError, match=r"^predictions\[a\] must be Tensor, given: "):
        EstimatorSpec("infer", predictions={"a": make()})


@pytest.mark.behaviour(295, 301)
def test_absent_predictions_are_an_empty_dict_and_without_a_mode_nothing_is_required():
    for mode in ("train", "eval"):
        assert EstimatorSpec(mode, loss=_loss(), train_op=tf.no_op()).predictions == {}
    spec = EstimatorSpec(None)
    assert (spec.loss, spec.train_op, spec.predictions) == (None, None, {})


@pytest.mark.parametrize(
    ("mode", "field", "make", "named"),
    [
        ("eval", "loss", _loss, 'loss with "a_loss:0"'),
        ("train", "train_op", lambda: tf.no_op(name="n"), 'train_op with "n"'),
        ("infer", "predictions", lambda: {"a": _loss()}, 'prediction values with "a: a_loss:0"'),
        ("infer", "predictions", _loss, 'prediction values with "a_loss:0"'),
        (
            "eval",
            "eval_metric_ops",
            lambda: {"m": (_loss(), tf.no_op())},
            'eval_metric_ops with "m: a_loss:0"',
        ),
        (
            "eval",
            "eval_metric_ops",
            lambda: {"m": v1.metrics.mean(1.0)},
            'eval_metric_ops with "m: mean/value:0"',
        ),
    ],
)
@pytest.mark.behaviour(296)
@row(
    "estimator", "a spec's tensor of another graph", "must be from the default graph. Possible cau"
)
def test_what_is_of_another_graph_is_refused(mode, field, make, named, refused):
    fields = {"loss": _loss(), "train_op": tf.no_op(), field: _elsewhere(make)}
    with refused(ValueError) as raised:
        EstimatorSpec(mode, **fields)
    assert re.search(f"^{named} must be from the default graph. Possible cau", str(raised.value))


@pytest.mark.parametrize("field", HOOK_FIELDS)
@pytest.mark.behaviour(297)
@row(
    "estimator", "hooks of a spec that are none", "must be SessionRunHook instances, given: 'hook'"
)
def test_hooks_must_be_session_run_hooks(field, refused):
    with refused(TypeError):
        EstimatorSpec("eval", loss=_loss(), **{field: ["hook"]})


@pytest.mark.parametrize("metrics", [[("m", 1)], 3, "m"])
@pytest.mark.behaviour(304)
@row("estimator", "`eval_metric_ops` that are not a dict", "eval_metric_ops must be a dict")
def test_metrics_must_be_a_dict(metrics, refused):
    with refused(TypeError):
        EstimatorSpec("eval", loss=_loss(), eval_metric_ops=metrics)


@pytest.mark.parametrize(
    "make",
    [
        _loss,
        lambda: (_loss(),),
        lambda: (1.0, 2.0),
        lambda: (_loss(), None, 1),
        lambda: (_loss(), "update"),
        lambda: (_loss(), None),
        lambda: [_loss(), tf.no_op()],
    ],
)
@pytest.mark.behaviour(304)
@row(
    "estimator",
    "a metric that is not a pair",
    "must be (metric_value, update_op) tuples",
    "for key: m.",
)
def test_a_metric_must_be_a_pair_of_tensors_and_ops(make, refused):
    with refused(TypeError):
        EstimatorSpec("eval", loss=_loss(), eval_metric_ops={"m": make()})


@pytest.mark.behaviour(304)
def test_a_keras_metric_becomes_a_pair_and_joins_the_collections():
    metric = tf_keras.metrics.Mean(name="average")
    with pytest.raises(
        ValueError, match=r'^Please call update_state\(...\) on the "average" metric'
    ):
        EstimatorSpec("eval", loss=_loss(), eval_metric_ops={"m": metric})
    metric.update_state([1.0, 4.0])
    spec = EstimatorSpec("eval", loss=_loss(), eval_metric_ops={"m": metric})
    for collection in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
        assert len(v1.get_collection(collection)) == len(metric.variables)
    changed = spec._replace(predictions={"p": _loss()})
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        for value, update in (spec.eval_metric_ops["m"], changed.eval_metric_ops["m"]):
            session.run(update)
            assert session.run(value) == 2.5


@pytest.mark.behaviour(305)
def test_a_scaffold_must_be_one_and_is_made_where_absent():
    with pytest.raises(TypeError, match=r"^scaffold must be tf.train.Scaffold. Given: 'scaffold'"):
        EstimatorSpec("eval", loss=_loss(), scaffold="scaffold")
    assert isinstance(EstimatorSpec("eval", loss=_loss()).scaffold, v1.train.Scaffold)


@pytest.mark.behaviour(306)
def test_replace_checks_again_and_keeps_the_mode():
    spec = EstimatorSpec("eval", loss=_loss())
    changed = spec._replace(predictions={"a": _loss()})
    assert isinstance(changed, EstimatorSpec)
    assert list(changed.predictions) == ["a"]
    assert spec._replace(mode="eval") == spec
    with pytest.raises(ValueError, match="mode of EstimatorSpec cannot be changed"):
        spec._replace(mode="train")
    with pytest.raises(TypeError, match="loss must be Tensor"):
        spec._replace(loss=1.0)
    with pytest.raises(ValueError, match=r"Got unexpected field names: \['losses'\]"):
        spec._replace(losses=_loss())


@pytest.mark.behaviour(307, 308)
def test_export_outputs_are_looked_at_in_infer_only():
    given = EstimatorSpec("eval", loss=_loss(), export_outputs="anything")
    assert given.export_outputs == "anything"
    with pytest.raises(TypeError, match="dict"):
        EstimatorSpec("infer", predictions=_loss(), export_outputs="anything")
    assert EstimatorSpec("infer", predictions=_loss(), export_outputs={}).export_outputs == {}
    (default,) = EstimatorSpec("infer", predictions={"a": _loss()}).export_outputs.values()
    assert isinstance(default, PredictOutput)


@pytest.mark.behaviour(309)
def test_a_spec_is_a_named_tuple_with_its_fields():
    hooks = {field: [v1.train.SessionRunHook()] for field in HOOK_FIELDS}
    loss, train_op = _loss(), tf.no_op()
    spec = EstimatorSpec("train", loss=loss, train_op=train_op, **hooks)
    assert isinstance(spec, tuple)
    assert (spec.mode, spec.loss, spec.train_op) == ("train", loss, train_op)
    for field, given in hooks.items():
        assert getattr(spec, field) == tuple(given)
    mode, *_ = spec
    assert mode == "train"


@pytest.mark.parametrize(
    ("mode", "field"),
    [("train", "training_hooks"), ("eval", "evaluation_hooks"), ("infer", "prediction_hooks")],
)
@pytest.mark.behaviour(258)
def test_a_template_has_the_hooks_of_its_mode(mode, field):
    hooks = {name: [v1.train.SessionRunHook()] for name in HOOK_FIELDS}
    spec = EstimatorSpec(
        mode, loss=_loss(), train_op=tf.no_op(), predictions={"a": _loss()}, **hooks
    )
    template = spec.as_template(mode=mode, features=1, labels=2)
    assert template.hooks == tuple(hooks[field])
    chief_hooks = hooks["training_chief_hooks"] if mode == "train" else ()
    assert template.chief_hooks == tuple(chief_hooks)
    assert (template.features, template.labels, template.mode) == (1, 2, mode)
    assert template.graph is v1.get_default_graph()
    assert template.make_scaffold() is spec.scaffold

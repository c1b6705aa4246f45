"""Exports of the graphs of training and evaluation: what they hold, compute and refuse."""

import logging
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tests.estimator.export import recorded_serving, saved_model_facts
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, experimental, export, tpu

v1 = tf.compat.v1

ROWS = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], np.float32)
LABELS = np.array([5.0, 2.0], np.float32)
SUPERVISED = recorded_serving.supervised_receiver_fn(
    experimental.build_raw_supervised_input_receiver_fn
)
SERVING = recorded_serving.receiver_fn(export)
ALL_MODES = {"infer": SERVING, "eval": SUPERVISED, "train": SUPERVISED}


def make(folder, model_fn=None, **arguments):
    return tpu.TPUEstimator(
        model_fn or recorded_serving.supervised_model_fn_for(tpu.TPUEstimatorSpec),
        config=tpu.RunConfig(model_dir=str(folder / "model")),
        **{"use_tpu": False, "train_batch_size": 4, **arguments},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model of one step; from ones, that is one step of Momentum."""
    folder = tmp_path_factory.mktemp("trained")
    make(folder).train(recorded_serving.input_fn, max_steps=1)
    return folder


def load(session, path, mode):
    """Loads a metagraph; gives (feeds of ROWS and LABELS, output name -> tensor name)."""
    signature = v1.saved_model.load(session, [mode], path).signature_def[mode]
    feeds = {signature.inputs["x"].name: ROWS, signature.inputs["label"].name: LABELS}
    return feeds, {key: info.name for key, info in signature.outputs.items()}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.behaviour(336, 337)
def test_one_graph_that_computes_loss_metrics_and_predictions(trained, tmp_path, mode):
    """The weights stay ones: four rows of (k, k+1, k+2)/12 have their sums as labels."""
    path = make(trained).export_saved_model(str(tmp_path), SUPERVISED, experimental_mode=mode)
    (facts,) = saved_model_facts.read_facts(path.decode())
    assert facts["tags"] == [mode]
    assert list(facts["signatures"]) == [mode]
    y = ROWS.sum(axis=1)
    loss = np.mean((y - LABELS) ** 2)
    with tf.Graph().as_default(), v1.Session() as session:
        feeds, outputs = load(session, path.decode(), mode)
        computed = session.run(outputs, feeds)
        values = session.run(
            {key: name for key, name in outputs.items() if key.endswith("value")}, feeds
        )
    np.testing.assert_allclose(computed["loss"], loss, atol=1e-5)
    np.testing.assert_allclose(computed["predictions/y"], y, atol=1e-5)
    np.testing.assert_allclose(computed["predictions_twice"], 2 * y, atol=1e-5)
    np.testing.assert_allclose(values["metrics/mean/value"], y.mean(), atol=1e-5)
    np.testing.assert_allclose(values["metrics_error/value"], loss, atol=1e-5)


@pytest.mark.behaviour(336)
def test_a_plain_estimator_exports_them_too(trained, tmp_path):
    def model_fn(features, labels, mode):
        (y,) = recorded_serving.network(features["x"])
        metrics = {"mean": v1.metrics.mean(y)}
        return EstimatorSpec(mode, loss=tf.reduce_mean(y), eval_metric_ops=metrics)

    estimator = Estimator(model_fn, model_dir=str(trained / "model"))
    path = estimator.export_saved_model(str(tmp_path), SUPERVISED, experimental_mode="eval")
    (facts,) = saved_model_facts.read_facts(path.decode())
    assert set(facts["signatures"]["eval"]["outputs"]) == {
        "loss",
        "metrics/mean/value",
        "metrics/mean/update_op",
    }


@pytest.mark.behaviour(336)
def test_export_to_tpu_only_warns(trained, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for to_tpu, warned in ((False, False), (True, True)):
        caplog.clear()
        make(trained, export_to_tpu=to_tpu).export_saved_model(
            str(tmp_path), SUPERVISED, experimental_mode="eval"
        )
        message = "Mode eval will be ignored for TPU"
        assert (message in caplog.text) == warned


@pytest.mark.behaviour(336)
def test_for_tpu_hosts_only_there_is_nothing_to_export(trained, tmp_path):
    estimator = make(trained, export_to_cpu=False)
    with pytest.raises(ValueError, match=r"Got dict_keys\(\['eval'\]\)\. .*set export_to_cpu"):
        estimator.export_saved_model(str(tmp_path), SUPERVISED, experimental_mode="eval")
    assert os.listdir(tmp_path) == []


@pytest.mark.behaviour(338)
def test_all_modes_share_the_variables_of_training(trained, tmp_path):
    """Whatever the order of the map; each graph loads, the optimizer's slots come with training."""
    path = make(trained).experimental_export_all_saved_models(str(tmp_path), ALL_MODES).decode()
    facts = saved_model_facts.read_facts(path)
    assert [graph["tags"] for graph in facts] == [["train"], ["eval"], ["serve"], ["serve", "tpu"]]
    saved = dict(tf.train.list_variables(f"{path}/variables/variables"))
    assert set(saved) == {"global_step", "weights", "weights/Momentum"}
    for mode in ("train", "eval"):
        with tf.Graph().as_default(), v1.Session() as session:
            feeds, outputs = load(session, path, mode)
            assert np.isfinite(session.run(outputs["loss"], feeds))
    np.testing.assert_allclose(
        recorded_serving.serve(path), np.sum(recorded_serving.ROWS, axis=1), atol=1e-5
    )


@pytest.mark.behaviour(338)
def test_the_exported_train_op_trains(trained, tmp_path):
    """Of two rows, one step of Momentum from zero slots: w - 0.1 * (0.9 * slot + gradient)."""
    path = make(trained).export_saved_model(str(tmp_path), SUPERVISED, experimental_mode="train")
    saved = tf.train.load_checkpoint(f"{path.decode()}/variables/variables")
    weights, slot = saved.get_tensor("weights"), saved.get_tensor("weights/Momentum")
    error = ROWS @ weights[:, 0] - LABELS
    gradient = ROWS.T @ error[:, None]  # mean of 2 * error over two rows
    with tf.Graph().as_default() as graph, v1.Session() as session:
        feeds, _ = load(session, path.decode(), "train")
        (train_op,) = v1.get_collection("saved_model_train_op")
        session.run(train_op, feeds)
        (variable,) = [v for v in v1.global_variables() if v.op.name == "weights"]
        assert variable.graph is graph
        updated = session.run(variable)
    np.testing.assert_allclose(updated, weights - 0.1 * (0.9 * slot + gradient), atol=1e-5)


@mostly_swept("in_function", [False, True], kept=[True])
@pytest.mark.behaviour(336)
def test_sums_over_cores_are_those_of_one_core(trained, tmp_path, in_function):
    """TensorFlow has no CPU kernel for them: with one left, no loader would take the graph.

    A core's number is 0 in the same graphs; read there, it would end the process.
    """

    def sum_and_number(y):
        return v1.tpu.cross_replica_sum(y) + tf.cast(gen_xla_ops.xla_replica_id(), y.dtype)

    def model_fn(features, labels, mode, params):
        (y,) = recorded_serving.network(features["x"])
        y = (tf.function(sum_and_number) if in_function else sum_and_number)(y)
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": v1.tpu.cross_replica_sum(y)})
        loss = v1.tpu.cross_replica_sum(tf.reduce_mean(tf.square(y[:, 0] - labels)))
        optimizer = tpu.CrossShardOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, v1.train.get_global_step()),
            eval_metrics=(lambda y: {"mean": v1.metrics.mean(y)}, [y]),
        )

    path = make(trained, model_fn).experimental_export_all_saved_models(str(tmp_path), ALL_MODES)
    facts = saved_model_facts.read_facts(path.decode())
    ops = [op for graph in facts[:3] for op in graph["ops"]]
    assert "CrossReplicaSum" not in ops
    assert "XlaReplicaId" not in ops
    assert "CrossReplicaSum" in facts[3]["tpu_call_ops"]
    expected = np.mean((ROWS.sum(axis=1) - LABELS) ** 2)
    for mode in ("train", "eval"):
        with tf.Graph().as_default(), v1.Session() as session:
            feeds, outputs = load(session, path.decode(), mode)
            np.testing.assert_allclose(session.run(outputs["loss"], feeds), expected, atol=1e-5)
            session.run(outputs["metrics/mean/update_op"], feeds)
            assert session.run(outputs["metrics/mean/value"]) == pytest.approx(3.5, abs=1e-5)
            for train_op in v1.get_collection("saved_model_train_op"):
                session.run(train_op, feeds)
    np.testing.assert_allclose(
        recorded_serving.serve(path.decode()),
        np.sum(recorded_serving.ROWS, axis=1, keepdims=True),
        atol=1e-5,
    )


@pytest.mark.behaviour(346)
def test_each_modes_scaffold_is_used(trained, tmp_path):
    """Its local_init_op sets the offset when the graph is loaded; its saver brings the weights."""
    offsets = {"train": 1.0, "eval": 2.0, "infer": 3.0}

    def model_fn(features, labels, mode):
        (y,) = recorded_serving.network(features["x"])
        offset = v1.get_local_variable("offset", initializer=0.0)
        scaffold = v1.train.Scaffold(
            saver=v1.train.Saver(v1.global_variables()),
            local_init_op=tf.group(offset.assign(offsets[mode])),
        )
        return EstimatorSpec(
            mode,
            predictions={"y": y[:, 0] + offset},
            loss=None if mode == "infer" else offset + 0.0,
            train_op=tf.no_op(),
            scaffold=scaffold,
        )

    estimator = Estimator(model_fn, model_dir=str(trained / "model"))
    path = estimator.experimental_export_all_saved_models(str(tmp_path), ALL_MODES).decode()
    for mode in ("train", "eval"):
        with tf.Graph().as_default(), v1.Session() as session:
            feeds, outputs = load(session, path, mode)
            assert session.run(outputs["loss"], feeds) == offsets[mode]
    weights = tf.train.load_variable(f"{trained}/model/model.ckpt-1", "weights")
    np.testing.assert_allclose(
        recorded_serving.serve(path), (recorded_serving.ROWS @ weights)[:, 0] + 3.0, atol=1e-5
    )


class TestRefused:
    def refuse(self, trained, folder, receivers, message, model_fn=None):
        estimator = make(trained, model_fn)
        with pytest.raises(ValueError, match=message):
            estimator.experimental_export_all_saved_models(str(folder), receivers)
        assert os.listdir(folder) == []

    @pytest.mark.parametrize(
        ("receivers", "message"),
        [
            ({}, r"No valid modes for exporting found\. Got dict_keys\(\[\]\)"),
            (
                {"predict": SERVING, "eval": SUPERVISED},
                r"No valid modes .* Got dict_keys\(\['predict', 'eval'\]\)\. The modes are 'train', 'eval', ",
            ),
            (
                {"eval": None, "infer": SERVING},
                r"An input_receiver_fn must be defined\. That of mode 'eval' is None",
            ),
        ],
    )
    @pytest.mark.behaviour(339, 340)
    def test_modes_that_cannot_be(self, trained, tmp_path, receivers, message):
        self.refuse(trained, tmp_path, receivers, message)

    @pytest.mark.behaviour(340)
    def test_an_unknown_mode_of_one_export(self, trained, tmp_path):
        with pytest.raises(ValueError, match=r"Got dict_keys\(\['test'\]\)\. The modes are"):
            make(trained).export_saved_model(str(tmp_path), SERVING, experimental_mode="test")

    @pytest.mark.parametrize("mode", ["train", "eval", "infer"])
    @pytest.mark.behaviour(341)
    def test_a_variable_that_the_checkpoint_lacks(self, trained, tmp_path, mode):
        original = recorded_serving.supervised_model_fn_for(tpu.TPUEstimatorSpec)

        def with_another(features, labels, mode, params):
            if mode == wanted:
                v1.get_variable("another", [1])
            return original(features, labels, mode, params)

        wanted = mode
        message = (
            rf"Could not load all requested variables.*With mode `{mode}`.*Missing in the "
            "checkpoint: 'another'"
        )
        self.refuse(trained, tmp_path, ALL_MODES, message, with_another)

    def test_the_features_of_a_graph_with_labels_need_labels(self, trained, tmp_path):
        def receiver_fn():
            x = v1.placeholder(tf.float32, [None, 3])
            return export.UnsupervisedInputReceiver({"x": x}, {"x": x})

        with pytest.raises(ValueError, match="None values not supported"):
            make(trained).export_saved_model(str(tmp_path), receiver_fn, experimental_mode="eval")
        assert os.listdir(tmp_path) == []


KINDS = (export.EvalOutput, export.TrainOutput)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def names(signature):
    return {key: info.name for key, info in signature.outputs.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.behaviour(337)
def test_lone_tensors_have_the_name_of_their_group(kind):
    x = tf.constant([1.0])
    output = kind(loss=x, predictions=x, metrics=(x, x))
    assert list(output.loss) == ["loss"]
    assert list(output.predictions) == ["predictions"]
    assert list(output.metrics) == ["metrics/value", "metrics/update_op"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.behaviour(337)
def test_names_that_tell_their_group_are_left(kind):
    x = tf.constant([1.0])
    output = kind(
        loss={"loss_of_head": x, "other": x},
        predictions={("predictions", "a"): x, ("head", "a"): x},
        metrics={"metrics_a": (x, x), ("head", "b"): (x, x)},
    )
    assert list(output.loss) == ["loss_of_head", "loss/other"]
    assert list(output.predictions) == ["predictions/a", "predictions/head/a"]
    assert list(output.metrics) == [
        "metrics_a/value",
        "metrics_a/update_op",
        "metrics/head/b/value",
        "metrics/head/b/update_op",
    ]


@pytest.mark.behaviour(337)
def test_an_update_that_is_an_op_runs_with_a_tensor():
    variable = v1.get_variable("v", initializer=1.0)
    update = tf.group(variable.assign_add(1.0))
    output = export.EvalOutput(metrics={"m": (variable.read_value(), update)})
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(output.metrics["metrics/m/update_op"]).size == 0
        assert session.run(output.metrics["metrics/m/value"]) == 2.0


@pytest.mark.behaviour(337)
def test_a_keras_metric_gives_both_halves():
    metric = tf.keras.metrics.Mean(name="mean")
    metric.update_state([1.0, 3.0])
    output = export.EvalOutput(metrics={"mean": metric})
    with v1.Session() as session:
        session.run([variable.initializer for variable in metric.variables])
        session.run(output.metrics["metrics/mean/update_op"])
        assert session.run(output.metrics["metrics/mean/value"]) == 2.0


def test_what_is_not_given_is_none():
    output = export.EvalOutput()
    assert (output.loss, output.predictions, output.metrics) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": {1: "tensor"}}, "loss output key must be a string; got 1"),
        ({"predictions": 3.0}, r"predictions output value must be a Tensor; got 3\.0"),
        ({"metrics": {2: ("value", "update")}}, "metrics output key must be a string; got 2"),
        ({"metrics": {"m": (1.0, 2.0)}}, r"metrics/m output value must be a Tensor; got 1\.0"),
    ],
)
def test_what_is_no_tensor_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        export.EvalOutput(**arguments)


def test_an_update_must_be_a_tensor_or_an_op():
    with pytest.raises(ValueError, match="metrics/m update_op must be a Tensor or Operation"):
        export.EvalOutput(metrics={"m": (tf.constant(1.0), 2.0)})


def test_inputs_are_needed():
    output = export.EvalOutput(loss=tf.constant(1.0))
    with pytest.raises(ValueError, match="tensorflow/supervised/eval `inputs` cannot be empty"):
        output.as_signature_def({})


@pytest.mark.behaviour(329)
def test_it_cannot_be_served_from_a_tpu():
    with pytest.raises(ValueError, match="must be have type `ClassificationOutput`"):
        export.EvalOutput(loss=tf.constant(1.0)).map_tensors(tf.identity)

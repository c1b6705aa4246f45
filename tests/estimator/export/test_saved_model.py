"""The written SavedModel: its graphs, variables, assets and signatures, its version folder, and what is refused."""

import os
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export import saved_model_facts, small_export
from tests.estimator.export.small_export import ROWS, call_host_model, call_model, linear
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.estimator._engine import tracing
from tfx_tpu_trainer.estimator.export import _saved_model
from tfx_tpu_trainer.estimator.export._saved_model import version_folder
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec

v1 = tf.compat.v1


@pytest.mark.behaviour(348)
def test_serves_what_a_session_predicts(tmp_path):
    model = call_host_model(linear)
    path = small_export.export_model(model, tmp_path)
    expected = small_export.run_directly(model, f"{tmp_path}/model.ckpt-3", ROWS)
    np.testing.assert_allclose(small_export.serve(path, {"x": ROWS})["output"], expected)
    loaded = tf.saved_model.load(path, tags=["serve"])
    answers = loaded.signatures["serving_default"](x=tf.constant(ROWS))
    np.testing.assert_allclose(answers["output"], expected, atol=1e-6)


@pytest.mark.behaviour(322, 349)
def test_any_object_is_a_receiver_and_labels_are_handed_on(tmp_path):
    class Receiver:
        def __init__(self):
            self.features = v1.placeholder(tf.float32, [None, 3])
            self.labels = tf.zeros([1])
            self.receiver_tensors = {"x": self.features}

    given = []

    def model(features, labels, mode, use_tpu):
        given.append(labels)
        return TPUEstimatorSpec(mode, predictions=linear({"x": features}))

    path = small_export.export_model(model, tmp_path, serving_input_receiver_fn=Receiver)
    assert len(given) == 3
    assert all(isinstance(labels, tf.Tensor) for labels in given[1:])
    assert small_export.serve(path, {"x": ROWS})["output"].shape == (2, 2)


def host_signature_receiver_fn(name="doubled"):
    def receiver_fn():
        x = v1.placeholder(tf.float32, [None, 3], name="x_in")
        signature = export.HostSignature(inputs={"x": x}, outputs={"doubled": x * 2})
        return export.ServingInputReceiver({"x": x}, {"x": x}, host_signatures={name: signature})

    return receiver_fn


def test_host_signatures_go_to_serve_only(tmp_path):
    path = small_export.export_model(
        call_model(linear), tmp_path, serving_input_receiver_fn=host_signature_receiver_fn()
    )
    host, tpu = saved_model_facts.read_facts(path)
    assert set(host["signatures"]) == {"serving_default", "doubled"}
    assert set(tpu["signatures"]) == {"serving_default"}
    answers = small_export.serve(path, {"x": ROWS}, signature="doubled")
    np.testing.assert_allclose(answers["doubled"], np.multiply(ROWS, 2))


def test_a_host_signature_must_not_hide_an_output(tmp_path):
    receiver_fn = host_signature_receiver_fn("serving_default")
    with pytest.raises(ValueError, match=r"host signatures \['serving_default'\] have the names"):
        small_export.export_model(
            call_model(linear), tmp_path, serving_input_receiver_fn=receiver_fn
        )


@pytest.mark.behaviour(346)
def test_a_scaffolds_saver_and_local_init_op_are_used(tmp_path):
    """A saver that loads moving averages in the place of the variables, as for evaluation."""

    def model(features, labels, mode, use_tpu):
        y = linear(features)
        offset = v1.get_local_variable("offset", initializer=tf.zeros([]))

        def scaffold_fn():
            (weights,) = v1.trainable_variables()
            names = {"average/w": weights, "global_step": v1.train.get_global_step()}
            return v1.train.Scaffold(
                saver=v1.train.Saver(names), local_init_op=tf.group(offset.assign(5.0))
            )

        return TPUEstimatorSpec(mode, predictions=y + offset, scaffold_fn=scaffold_fn)

    with tracing.fresh_graph():
        v1.get_variable("average/w", [3, 2], initializer=v1.ones_initializer())
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            checkpoint = v1.train.Saver().save(session, f"{tmp_path}/averages.ckpt")
    path = small_export.export_model(model, tmp_path, checkpoint_path=checkpoint)
    expected = np.sum(ROWS, axis=1) + 5.0
    answers = small_export.serve(path, {"x": ROWS})["output"]
    np.testing.assert_allclose(answers, np.stack([expected, expected], 1), atol=1e-6)


@pytest.mark.behaviour(346)
def test_a_scaffolds_objects_are_what_is_restored(tmp_path):
    """Scaffold(saver=tf.train.Checkpoint(...)): the names in the checkpoint are those of objects."""

    def model(features, labels, mode, use_tpu):
        y = linear(features)
        (weights,) = v1.trainable_variables()
        step = v1.train.get_global_step()
        objects = tf.train.Checkpoint(weights=weights, step=step)
        scaffold = v1.train.Scaffold(saver=objects)
        return TPUEstimatorSpec(mode, predictions=y, scaffold_fn=lambda: scaffold)

    weights = tf.Variable(tf.ones([3, 2]))
    step = tf.Variable(3, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weights=weights, step=step).write(f"{tmp_path}/objects")
    path = small_export.export_model(
        model, tmp_path, checkpoint_path=checkpoint, export_to_tpu=False
    )
    sums = np.sum(ROWS, axis=1)
    answers = small_export.serve(path, {"x": ROWS})["output"]
    np.testing.assert_allclose(answers, np.stack([sums, sums], 1), atol=1e-6)


class TestRefused:
    def refuse(self, tmp_path, message, model=None, error=ValueError, **changes):
        with pytest.raises(error, match=message):
            small_export.export_model(model or call_model(linear), tmp_path, **changes)
        versions = tmp_path / "versions"
        assert not versions.exists() or os.listdir(versions) == []

    def test_api_version(self, tmp_path):
        self.refuse(tmp_path, "api_version must be 1 or 2, got: 3", api_version=3)

    def test_a_receiver_function_that_returns_something_else(self, tmp_path):
        checkpoint = small_export.write_checkpoint(call_model(linear), tmp_path)
        self.refuse(
            tmp_path,
            "features must be defined: the input receiver function returned 3",
            serving_input_receiver_fn=lambda: 3,
            checkpoint_path=checkpoint,
        )

    @pytest.mark.behaviour(341)
    def test_variables_that_the_checkpoint_lacks(self, tmp_path):
        def network(features):
            v1.get_variable("b", [2])
            v1.get_variable("a", [2])
            return linear(features)

        checkpoint = small_export.write_checkpoint(call_model(linear), tmp_path)
        self.refuse(
            tmp_path,
            r"Could not load all requested variables.*mode `infer`, tags \['serve'\]: Missing in the "
            r"checkpoint: 'a' float32 \[.*\], 'b' float32 \[.*\]\. ",
            call_model(network),
            checkpoint_path=checkpoint,
        )

    def test_a_variable_of_another_shape(self, tmp_path):
        def network(features):
            return tf.matmul(features["x"], v1.get_variable("w", [3, 5]))

        checkpoint = small_export.write_checkpoint(call_model(linear), tmp_path)
        self.refuse(
            tmp_path,
            r"'w': float32 \[3, 2\] in the checkpoint, float32 \[3, 5\] in the graph",
            call_model(network),
            checkpoint_path=checkpoint,
        )

    def test_variables_of_the_tpu_graph_alone(self, tmp_path):
        def model(features, labels, mode, use_tpu):
            if use_tpu:
                v1.get_variable("only_there", [1])
            return TPUEstimatorSpec(mode, predictions=linear(features))

        self.refuse(
            tmp_path,
            r"\['serve', 'tpu'\] has variables that the one tagged \['serve'\] lacks: "
            "'only_there'",
            model,
            api_version=2,
        )

    @pytest.mark.parametrize("key", ["/abs.txt", "."])
    def test_assets_extra_elsewhere(self, tmp_path, key):
        self.refuse(tmp_path, "must be a path below assets.extra", assets_extra={key: __file__})


def write(folder):
    with open(os.path.join(folder, "file"), "w", encoding="utf-8") as file:
        file.write("content")


@pytest.mark.behaviour(310)
def test_a_version_appears_when_it_is_complete(tmp_path):
    base = str(tmp_path / "versions")
    before = int(time.time())
    with version_folder(base) as (temporary, final):
        write(temporary)
        assert os.listdir(base) == [os.path.basename(temporary)]
        assert os.path.basename(temporary) == f"temp-{os.path.basename(final)}"
    assert os.listdir(base) == [os.path.basename(final)]
    assert os.listdir(final) == ["file"]
    assert before <= int(os.path.basename(final)) <= time.time()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.behaviour(310)
def test_a_failure_leaves_nothing(tmp_path, error):
    def write_half():
        with version_folder(str(tmp_path)) as (temporary, _):
            write(temporary)
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == []


@pytest.mark.behaviour(310)
def test_a_taken_version_is_left_alone(tmp_path):
    now = int(time.time())
    taken = [str(now), f"temp-{now + 1}"]
    for name in taken:
        (tmp_path / name).mkdir()
    with version_folder(str(tmp_path)) as (temporary, final):
        write(temporary)
    assert int(os.path.basename(final)) >= now + 2
    assert os.listdir(tmp_path / taken[0]) == []
    assert os.listdir(tmp_path / taken[1]) == []


@pytest.mark.behaviour(310)
def test_ten_taken_versions_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(_saved_model, "MAX_ATTEMPTS", 1)
    now = int(time.time())
    for second in range(now, now + 10):
        (tmp_path / str(second)).mkdir()
    with (
        pytest.raises(RuntimeError, match="unique export directory name after 1 attempts"),
        version_folder(str(tmp_path)),
    ):
        raise AssertionError("no version is free")

"""What a model_fn calls to put itself on the TPU, with version 2 of the export."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export import recorded_serving, saved_model_facts, small_export
from tests.estimator.export.recorded_serving import NUMBERS, ROWS
from tfx_tpu_trainer.estimator import EstimatorSpec, export, tpu
from tfx_tpu_trainer.estimator.export._tpu_metagraph import build_tpu_meta_graph

v1 = tf.compat.v1


def call_of(model_fn):
    """A ModelCall of a model_fn that takes params."""

    def call(features, labels, mode, use_tpu):
        return model_fn(features, labels, mode, {"use_tpu": use_tpu})

    return call


def export_with_version_2(model_fn, folder, **changes):
    return small_export.export_model(
        call_of(model_fn),
        folder,
        serving_input_receiver_fn=changes.pop("receiver_fn", recorded_serving.receiver_fn(export)),
        api_version=2,
        **changes,
    )


@pytest.fixture(params=recorded_serving.CASES)
def model_fn(request):
    return recorded_serving.model_fn_for(
        tpu.TPUEstimatorSpec, export.PredictOutput, tpu, request.param
    )


@pytest.mark.behaviour(334)
def test_version_1_rewrites_all_of_it_already(model_fn):
    def call(features, labels, mode, use_tpu):
        return model_fn(features, labels, mode, {"use_tpu": True})

    with pytest.raises(
        NotImplementedError,
        match=r"^tpu_shard_context cannot be nested: .* export_saved_model_api_version=2, and in "
        r"runs, where model_fn finds params\[\"batch_size\"\], call the computation directly\.$",
    ):
        build_tpu_meta_graph(call, recorded_serving.receiver_fn(export), api_version=1)


@pytest.mark.behaviour(334)
def test_runs_on_cores_rewrite_all_of_it_already(model_fn, tmp_path):
    settings = {"model_fn": model_fn, "train_batch_size": 4, "predict_batch_size": 4}
    config = tpu.RunConfig(
        model_dir=str(tmp_path), master="emulated", tpu_config=tpu.TPUConfig(num_shards=2)
    )
    tpu.TPUEstimator(config=config, use_tpu=False, **settings).train(
        recorded_serving.input_fn, max_steps=1
    )

    def input_fn(params):
        return tf.data.Dataset.from_tensors({"x": tf.ones([4, 3])})

    estimator = tpu.TPUEstimator(config=config, export_saved_model_api_version=2, **settings)
    with pytest.raises(NotImplementedError, match="call the computation directly"):
        next(estimator.predict(input_fn))


def whole_model_fn(inner_model_fn, **arguments):
    """A model_fn that puts another one on the TPU."""

    def model_fn(features, labels, mode, params):
        if params["use_tpu"]:
            return tpu.model_fn_inference_on_tpu(
                inner_model_fn, features, labels, params=params, **arguments
            )
        return inner_model_fn(features, labels, mode, params)

    return model_fn


BATCHES = tpu.BatchConfig(**NUMBERS)


@pytest.mark.parametrize(
    ("spec", "batch_config"), [(EstimatorSpec, BATCHES), (tpu.TPUEstimatorSpec, None)]
)
@pytest.mark.behaviour(332)
def test_a_whole_model_keeps_its_signatures(spec, batch_config, tmp_path):
    calls = []

    def inner(features, labels, mode, params):
        calls.append((labels, mode, params))
        (y,) = recorded_serving.network(features["x"])
        return spec(
            mode=mode,
            predictions={"y": y, "twice": 2 * y},
            export_outputs={
                "serving_default": export.PredictOutput({"y": y}),
                "score": export.RegressionOutput(y),
            },
        )

    def receiver_fn():
        specification = {"x": tf.io.FixedLenFeature([3], tf.float32)}
        return export.build_parsing_serving_input_receiver_fn(specification)()

    path = export_with_version_2(
        whole_model_fn(inner, batch_config=batch_config), tmp_path, receiver_fn=receiver_fn
    )
    assert calls[-1] == (None, "infer", {"use_tpu": True})
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert set(of_host["signatures"]) == {"serving_default", "score"}
    assert of_tpu["signatures"] == of_host["signatures"]
    assert len(of_tpu["batch_functions"]) == (batch_config is not None)
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=row))}
            )
        ).SerializeToString()
        for row in ROWS
    ]
    answers = small_export.serve_tpu_graph(path, {"inputs": examples}, signature="score")
    expected = np.sum(ROWS, axis=1, keepdims=True)
    np.testing.assert_allclose(answers["outputs"], expected, atol=1e-6)


@pytest.mark.parametrize("batch_config", [None, BATCHES])
def test_a_whole_models_predictions_stand_outside(batch_config):
    def inner(features):
        (y,) = recorded_serving.network(features)
        return EstimatorSpec("infer", predictions=y)

    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3])
        spec = tpu.model_fn_inference_on_tpu(inner, x, batch_config=batch_config)
        assert spec.predictions.graph is graph
        assert spec.predictions.shape.as_list() == [None, 1]
        assert list(spec.export_outputs) == ["serving_default"]


@pytest.mark.parametrize("batch_config", [None, BATCHES])
@pytest.mark.behaviour(328)
def test_a_whole_models_untouched_feature_stays_outside(batch_config, tmp_path):
    def inner(features, labels, mode, params):
        (y,) = recorded_serving.network(features["x"])
        return tpu.TPUEstimatorSpec(mode, predictions={"key": features["key"], "y": y})

    def receiver_fn():
        x = v1.placeholder(tf.float32, [None, 3], name="x_in")
        key = v1.placeholder(tf.string, [None], name="key_in")
        return export.ServingInputReceiver({"x": x, "key": key}, {"x": x, "key": key})

    path = export_with_version_2(
        whole_model_fn(inner, batch_config=batch_config), tmp_path, receiver_fn=receiver_fn
    )
    keys = [b"a", b"b", b"c"]
    answers = small_export.serve_tpu_graph(path, {"x": ROWS, "key": keys})
    assert answers["key"].tolist() == keys
    np.testing.assert_allclose(answers["y"], np.sum(ROWS, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.behaviour(332)
def test_a_batch_reaches_the_tpu_in_an_allowed_size(tmp_path):
    """Three rows are padded to eight: the computation tells how many it saw."""

    def count(x):
        size = tf.shape(x)[:1]
        return tf.tile(size, size), tf.identity(x)

    def model_fn(features, labels, mode, params):
        recorded_serving.network(features["x"])
        if params["use_tpu"]:
            size, x = tpu.inference_on_tpu(count, [features["x"]], **NUMBERS)
        else:
            size, x = count(features["x"])
        return tpu.TPUEstimatorSpec(mode, predictions={"size": size, "x": x})

    path = export_with_version_2(model_fn, tmp_path)
    assert small_export.serve(path, {"x": ROWS})["size"].tolist() == [3, 3, 3]
    answers = small_export.serve_tpu_graph(path, {"x": ROWS})
    assert answers["size"].tolist() == [8, 8, 8]
    np.testing.assert_allclose(answers["x"], ROWS)


@pytest.mark.behaviour(332)
def test_an_unbatched_answer_is_a_list_and_a_dict_stays_one():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 3])
        numbers = {**NUMBERS, "max_batch_size": 0}
        (lone,) = tpu.inference_on_tpu(lambda rows: rows * 2, [x], **numbers)
        assert lone.shape.as_list() == [None, 3]
        named = tpu.inference_on_tpu(lambda rows: {"b": rows[:, 0], "a": rows}, [x], **numbers)
        assert {name: t.shape.as_list() for name, t in named.items()} == {
            "b": [None],
            "a": [None, 3],
        }


@pytest.mark.behaviour(332)
def test_call_computation_leaves_the_rewriting_to_the_computation():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3])
        given = []

        def computation(inputs):
            given.append(inputs)
            scaled = tf.multiply(inputs["x"], 2.0, name="on_the_host")
            return v1.tpu.rewrite(lambda: tf.exp(scaled, name="on_the_tpu"))

        (y,) = tpu.call_computation({"x": x}, computation)
        assert set(given[0]) == {"x"}
        assert y.shape.as_list() == [None, 3]
        (program,) = graph.as_graph_def().library.function
        on_tpu = {node.op for node in program.node_def if "_tpu_replicate" in node.attr}
        assert "Exp" in on_tpu
        assert "Mul" not in on_tpu


def test_a_computation_without_a_result_is_refused():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 3])
        with pytest.raises(ValueError, match="The computation for the TPU returns no tensor"):
            tpu.call_computation(x, lambda inputs: [])

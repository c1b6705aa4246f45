"""The metagraph for TPUs: whatever a model_fn does, both graphs have one set of variables."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model.model_utils import export_output as of_tensorflow

from tests.estimator.export import saved_model_facts, small_export
from tests.estimator.export.small_export import ROWS, call_model, linear
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.estimator.export._tpu_metagraph import build_tpu_meta_graph
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec, inference_on_tpu

v1 = tf.compat.v1


def v1_layers(features):
    hidden = v1.layers.dense(features["x"], 4, activation=tf.nn.relu)
    hidden = v1.layers.batch_normalization(hidden, training=False)
    return v1.layers.dense(hidden, 2)


def tf_keras_layers(features):
    model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(2)])
    return model(features["x"])


def variable_from_a_tensor(features):
    weights = v1.Variable(tf.random.normal([3, 2], seed=1), name="weights")
    return tf.matmul(features["x"], weights)


def variable_from_a_tensor_v2(features):
    weights = tf.Variable(tf.random.normal([3, 2], seed=1), name="weights")
    return tf.matmul(features["x"], weights)


def control_flow(features):
    weights = v1.get_variable("w", [3, 2], initializer=v1.ones_initializer())
    product = tf.matmul(features["x"], weights)
    doubled = tf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2.0), [0, product])[1]
    return tf.cond(tf.reduce_sum(doubled) > 0, lambda: doubled * weights[0], lambda: -doubled)


def partitioned(features):
    with v1.variable_scope("scope", partitioner=v1.fixed_size_partitioner(3)):
        weights = v1.get_variable("w", [3, 2], initializer=v1.random_normal_initializer())
    return tf.matmul(features["x"], weights)


def reads_global_step(features):
    step = tf.cast(v1.train.get_or_create_global_step(), tf.float32)
    return linear(features) + step


def name_scopes(features):
    with tf.name_scope("tower"):
        weights = tf.Variable(tf.ones([3, 2]), name="w")
        return tf.matmul(features["x"], weights)


@pytest.mark.parametrize(
    "network",
    [
        linear,
        v1_layers,
        tf_keras_layers,
        variable_from_a_tensor,
        variable_from_a_tensor_v2,
        control_flow,
        partitioned,
        reads_global_step,
        name_scopes,
    ],
)
def test_tpu_computation_predicts_what_a_session_does(network, tmp_path):
    model = call_model(network)
    path = small_export.export_model(model, tmp_path)
    expected = small_export.run_directly(model, f"{tmp_path}/model.ckpt-3", ROWS)
    served = small_export.serve(path, {"x": ROWS})["output"]
    on_tpu = small_export.serve_tpu_graph(path, {"x": ROWS})["output"]
    np.testing.assert_allclose(served, expected, atol=1e-6)
    np.testing.assert_allclose(on_tpu, expected, atol=1e-6)


@pytest.mark.behaviour(322)
def test_model_fn_is_called_once_with_the_mode_of_serving(tmp_path):
    calls = []

    def model(features, labels, mode, use_tpu):
        calls.append((labels, mode, use_tpu))
        return TPUEstimatorSpec(mode, predictions=linear(features))

    checkpoint = small_export.write_checkpoint(model, tmp_path)
    calls.clear()
    build_tpu_meta_graph(model, small_export.receiver_fn, api_version=1)
    assert calls == [(None, "infer", False)]
    small_export.export_model(model, tmp_path, checkpoint_path=checkpoint)
    assert calls == [(None, "infer", False)] * 3


@pytest.mark.behaviour(327, 335)
def test_nothing_of_the_model_stands_outside_of_the_call(tmp_path):
    facts = saved_model_facts.read_facts(small_export.export_model(call_model(linear), tmp_path))[1]
    assert facts["tpu_calls"] == 1
    assert "MatMul" in facts["tpu_call_ops"]
    assert "MatMul" not in facts["ops"]
    assert "BatchFunction" not in facts["ops"]
    assert "GuaranteeConst" not in facts["ops"] + facts["tpu_call_ops"]


def string_receiver_fn():
    x = v1.placeholder(tf.float32, [None, 3], name="x_in")
    key = v1.placeholder(tf.string, [None], name="key_in")
    unused = v1.placeholder(tf.string, [None], name="unused_in")
    features = {"x": x, "key": key, "unused": unused}
    return export.ServingInputReceiver(features, {"x": x, "key": key})


@pytest.mark.behaviour(328)
def test_a_feature_passed_through_stays_on_the_host(tmp_path):
    model = call_model(lambda features: {"key": features["key"], "y": linear(features)})
    path = small_export.export_model(model, tmp_path, serving_input_receiver_fn=string_receiver_fn)
    answers = small_export.serve_tpu_graph(path, {"x": ROWS, "key": [b"a", b"b"]})
    assert answers["key"].tolist() == [b"a", b"b"]
    np.testing.assert_allclose(
        answers["y"], small_export.serve(path, {"x": ROWS, "key": [b"a", b"b"]})["y"], atol=1e-6
    )


def test_only_features_that_are_used_go_into_the_call():
    meta_graph = build_tpu_meta_graph(
        call_model(linear), string_receiver_fn, api_version=1, random_seed=1
    )
    (call,) = [op for op in meta_graph.graph.get_operations() if op.type == "TPUPartitionedCall"]
    fed = {tensor.op.name for tensor in call.inputs}
    assert fed == {"x_in", "w", "TPUOrdinalSelector"}


def test_nothing_left_for_the_tpu_is_an_error():
    model = call_model(lambda features: {"x": features["x"]})
    with pytest.raises(ValueError, match=r"Nothing is left for the TPU.*export_to_tpu=False"):
        build_tpu_meta_graph(model, small_export.receiver_fn, api_version=1)


@pytest.mark.parametrize("library", [export, of_tensorflow], ids=["ours", "of_tensorflow"])
@pytest.mark.parametrize("halves", [("scores",), ("classes",), ("scores", "classes")])
@pytest.mark.behaviour(330)
def test_classification_survives_with_either_half(halves, library, tmp_path):
    def model(features, labels, mode, use_tpu):
        scores = tf.nn.softmax(linear(features))
        best = tf.expand_dims(tf.argmax(scores, axis=1), 1)
        classes = v1.tpu.outside_compilation(tf.as_string, best)
        both = {"scores": scores, "classes": classes}
        output = library.ClassificationOutput(**{half: both[half] for half in halves})
        return TPUEstimatorSpec(
            mode,
            predictions={"scores": scores},
            export_outputs={
                "serving_default": library.PredictOutput({"scores": scores}),
                "classes": output,
                "value": library.RegressionOutput(scores),
            },
        )

    def parsing_receiver_fn():
        spec = {"x": tf.io.FixedLenFeature([3], tf.float32)}
        return export.build_parsing_serving_input_receiver_fn(spec)()

    path = small_export.export_model(model, tmp_path, serving_input_receiver_fn=parsing_receiver_fn)
    of_host, of_tpu = (m["signatures"] for m in saved_model_facts.read_facts(path))
    assert set(of_tpu["classes"]["outputs"]) == set(halves)
    assert set(of_tpu) == {"serving_default", "classes", "value"}
    assert of_tpu == of_host


@pytest.mark.parametrize("library", [export, of_tensorflow], ids=["ours", "of_tensorflow"])
@pytest.mark.behaviour(329)
def test_an_output_of_an_own_kind_is_refused(library):
    class OwnOutput(library.ExportOutput):
        def as_signature_def(self, receiver_tensors):
            raise AssertionError("the export ends before")

    def model(features, labels, mode, use_tpu):
        return TPUEstimatorSpec(
            mode, predictions=linear(features), export_outputs={"serving_default": OwnOutput()}
        )

    with pytest.raises(ValueError, match="must be have type `ClassificationOutput`"):
        build_tpu_meta_graph(model, small_export.receiver_fn, api_version=1)


def test_errors_of_model_fn_arrive_as_they_are():
    model = call_model(lambda features: linear({"x": features["missing"]}))
    with pytest.raises(KeyError, match="missing"):
        build_tpu_meta_graph(model, small_export.receiver_fn, api_version=1)


@pytest.mark.parametrize("rewrites", [True, False])
@pytest.mark.behaviour(325)
def test_version_2_says_so_where_nothing_runs_on_the_tpu(rewrites, caplog):
    def model(features, labels, mode, use_tpu):
        def network(x):
            return [tf.matmul(x, tf.ones([3, 2]))]

        on_tpu = functools.partial(
            inference_on_tpu, num_batch_threads=1, max_batch_size=None, batch_timeout_micros=0
        )
        (y,) = on_tpu(network, [features["x"]]) if rewrites else network(features["x"])
        return TPUEstimatorSpec(mode, predictions={"y": y})

    build_tpu_meta_graph(model, small_export.receiver_fn, api_version=2)
    lines = [record for record in caplog.records if "runs nothing on a TPU" in record.message]
    assert len(lines) == (0 if rewrites else 1)


@pytest.mark.behaviour(325)
def test_version_2_leaves_the_rewriting_to_model_fn(tmp_path):
    asked = []

    def model(features, labels, mode, use_tpu):
        asked.append(use_tpu)
        weights = v1.get_variable("w", [3, 2], initializer=v1.ones_initializer())

        def computation():
            return [tf.matmul(features["x"], weights)]

        (y,) = v1.tpu.rewrite(computation) if use_tpu else computation()
        return TPUEstimatorSpec(mode, predictions={"y": y})

    checkpoint = small_export.write_checkpoint(model, tmp_path)
    asked.clear()
    path = small_export.export_model(model, tmp_path, checkpoint_path=checkpoint, api_version=2)
    assert asked == [False, True]
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert of_tpu["tpu_calls"] == 0
    assert "TPUReplicateMetadata" in of_tpu["ops"]
    assert of_tpu["signatures"] == of_host["signatures"]
    np.testing.assert_allclose(
        small_export.serve(path, {"x": ROWS})["y"], np.matmul(ROWS, np.ones([3, 2])), atol=1e-6
    )


@pytest.mark.behaviour(331, 343)
def test_a_table_looked_up_outside_of_the_compilation_brings_its_asset(tmp_path):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("a\nb\n")

    def network(features):
        def look_up():
            table = tf.lookup.StaticVocabularyTable(
                tf.lookup.TextFileInitializer(
                    str(vocabulary),
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                ),
                num_oov_buckets=1,
            )
            return table.lookup(features["key"])

        ids = v1.tpu.outside_compilation(look_up)
        return {"y": linear(features) + tf.cast(ids, tf.float32)[:, None], "ids": ids}

    path = small_export.export_model(
        call_model(network), tmp_path, serving_input_receiver_fn=string_receiver_fn
    )
    facts = saved_model_facts.read_facts(path)
    assert [graph["assets"] for graph in facts] == [["words.txt"]] * 2
    feeds = {"x": ROWS, "key": [b"b", b"unseen"]}
    answers = small_export.serve_tpu_graph(path, feeds)
    assert answers["ids"].tolist() == [1, 2]
    np.testing.assert_allclose(answers["y"], small_export.serve(path, feeds)["y"], atol=1e-6)


def test_a_scaffold_made_inside_of_the_computation_is_refused():
    def model(features, labels, mode, use_tpu):
        y = linear(features)
        scaffold = v1.train.Scaffold(local_init_op=tf.group(y))
        return small_export.EstimatorSpec(mode, predictions=y, scaffold=scaffold)

    with pytest.raises(ValueError, match=r"local_init_op.*TPUEstimatorSpec whose scaffold_fn"):
        build_tpu_meta_graph(model, small_export.receiver_fn, api_version=1)

import pytest
import tensorflow as tf
from tensorflow.python.saved_model.model_utils import export_output as of_tensorflow

from tests.bad_input import row
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.estimator.export._outputs import normalise_export_outputs

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def floats(name="scores", width=2):
    return v1.placeholder(tf.float32, [None, width], name=name)


def strings(name="examples"):
    return v1.placeholder(tf.string, [None], name=name)


class TestPredictOutput:
    @pytest.mark.behaviour(317)
    def test_a_lone_tensor_is_called_output(self):
        tensor = floats()
        assert export.PredictOutput(tensor).outputs == {"output": tensor}

    def test_tuple_keys_are_joined(self):
        tensor = floats()
        assert export.PredictOutput({("head", "scores"): tensor}).outputs == {"head/scores": tensor}

    @row(
        "exports", "`PredictOutput` with the key 1", "Prediction output key must be a string; got 1"
    )
    def test_a_key_that_is_no_string(self, refused):
        with refused(ValueError):
            export.PredictOutput({1: floats()})

    @pytest.mark.parametrize("value", [None, 3.0, "text"])
    def test_a_value_that_is_no_tensor(self, value):
        with pytest.raises(ValueError, match="Prediction output value must be a Tensor; got"):
            export.PredictOutput({"scores": value})

    def test_signature(self):
        signature = export.PredictOutput(floats()).as_signature_def({"examples": strings()})
        assert signature.method_name == "tensorflow/serving/predict"
        assert signature.inputs["examples"].name == "examples:0"
        assert signature.outputs["output"].name == "scores:0"

    def test_map_tensors_keeps_the_keys(self):
        output = export.PredictOutput({"a": floats("a"), "b": floats("b")})
        mapped = output.map_tensors(tf.identity)
        assert list(mapped.outputs) == ["a", "b"]
        assert mapped.outputs["a"].op.type == "Identity"


class TestClassificationOutput:
    def test_keeps_what_it_is_given(self):
        scores, classes = floats(), strings("classes")
        output = export.ClassificationOutput(scores, classes)
        assert output.scores is scores
        assert output.classes is classes

    @row("exports", "`ClassificationOutput()`", "At least one of `scores` and `classes`")
    def test_needs_one_of_the_two(self, refused):
        with refused(ValueError):
            export.ClassificationOutput()

    @row(
        "exports",
        "`ClassificationOutput` of integers as scores",
        "scores must be a float32 Tensor; got",
    )
    def test_scores_must_be_floats(self, refused):
        with refused(ValueError):
            export.ClassificationOutput(scores=tf.constant([1]))

    @row(
        "exports",
        "`ClassificationOutput` of integers as classes",
        "classes must be a string Tensor; got",
        "as_string",
    )
    def test_classes_must_be_strings(self, refused):
        with refused(ValueError):
            export.ClassificationOutput(classes=tf.constant([1]))

    def test_signature(self):
        output = export.ClassificationOutput(floats(), strings("classes"))
        signature = output.as_signature_def({"examples": strings()})
        assert signature.method_name == "tensorflow/serving/classify"
        assert set(signature.inputs) == {"inputs"}
        assert set(signature.outputs) == {"classes", "scores"}

    @pytest.mark.parametrize("make_inputs", [dict, lambda: {"x": floats("x")}])
    def test_takes_one_string_tensor_only(self, make_inputs):
        with pytest.raises(
            ValueError, match=r"only accept a single tensor input of type tf\.string"
        ):
            export.ClassificationOutput(floats()).as_signature_def(make_inputs())

    def test_map_tensors_leaves_none(self):
        mapped = export.ClassificationOutput(scores=floats()).map_tensors(tf.identity)
        assert mapped.classes is None
        assert mapped.scores.op.type == "Identity"


class TestRegressionOutput:
    @row("exports", "`RegressionOutput` of text", "value must be a float32 Tensor; got")
    def test_value_must_be_floats(self, refused):
        with refused(ValueError):
            export.RegressionOutput(strings())

    def test_signature(self):
        value = floats("value", width=1)
        signature = export.RegressionOutput(value).as_signature_def({"examples": strings()})
        assert signature.method_name == "tensorflow/serving/regress"
        assert set(signature.inputs) == {"inputs"}
        assert signature.outputs["outputs"].name == "value:0"

    def test_takes_one_string_tensor_only(self):
        with pytest.raises(ValueError, match="Regression signatures can only accept"):
            export.RegressionOutput(floats()).as_signature_def({"a": strings(), "b": strings()})


class TestNormaliseExportOutputs:
    @pytest.mark.behaviour(317)
    def test_none_gives_one_predict_output(self):
        predictions = {"scores": floats()}
        outputs = normalise_export_outputs(None, predictions)
        assert list(outputs) == ["serving_default"]
        assert outputs["serving_default"].outputs == predictions

    @row(
        "exports", "`export_outputs` that is not a dict", "`export_outputs` must be dict, received"
    )
    def test_no_dict(self, refused):
        with refused(TypeError):
            normalise_export_outputs(export.PredictOutput(floats()), None)

    @row("exports", "`export_outputs` of a tensor", "must be ExportOutput objects, received")
    def test_a_value_that_is_no_export_output(self, refused):
        with refused(TypeError):
            normalise_export_outputs({"head": floats()}, None)

    def test_a_lone_output_stands_under_the_default_name_too(self):
        given = {"head": export.PredictOutput(floats())}
        outputs = normalise_export_outputs(given, None)
        assert outputs == {"head": given["head"], "serving_default": given["head"]}
        assert list(given) == ["head"]

    @pytest.mark.behaviour(307)
    def test_tensorflows_own_classes_are_taken_as_they_are(self):
        class Own(of_tensorflow.ExportOutput):
            pass

        given = {"serving_default": of_tensorflow.PredictOutput(floats()), "own": Own()}
        assert normalise_export_outputs(given, None) == given

    @row(
        "exports",
        "two `export_outputs`, neither of them the default",
        "none of them are specified as the default. Use",
        "'b'",
    )
    def test_several_without_a_default(self, refused):
        output = export.PredictOutput(floats())
        with refused(ValueError):
            normalise_export_outputs({"a": output, "b": output}, None)

    def test_several_with_a_default(self):
        output = export.PredictOutput(floats())
        given = {"serving_default": output, "b": output}
        assert normalise_export_outputs(given, None) == given

    def test_an_empty_dict(self):
        assert normalise_export_outputs({}, None) == {}

    def test_predictions_that_cannot_be_exported(self):
        with pytest.raises(ValueError, match="Prediction output value must be a Tensor; got None"):
            normalise_export_outputs(None, None)

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.bad_input import case
from tests.serving.saved_models import save_metagraphs
from tfx_tpu_trainer.serving import describe_saved_model


class _Doubler(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def serve(self, x):
        return {"y": 2.0 * x, "label": tf.strings.as_string(x[:, 0])}

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64, name="ids")])
    def count(self, ids):
        return {"n": tf.size(ids)}


@pytest.mark.parametrize("as_text", [False, True])
def test_two_metagraphs(tmp_path, as_text):
    path = save_metagraphs(str(tmp_path / "model"), ["serve"], ["serve", "tpu"], as_text=as_text)
    host, tpu = describe_saved_model(path)

    assert (host.tags, tpu.tags) == (("serve",), ("serve", "tpu"))
    assert (host.has_tpu_ops, host.tpu_ops) == (False, ())
    assert (tpu.has_tpu_ops, tpu.tpu_ops) == (True, ("TPUOrdinalSelector",))
    assert tpu.num_ops == host.num_ops + 1
    for meta_graph in (host, tpu):
        [(name, signature)] = meta_graph.signatures.items()
        assert name == "serving_default"
        assert signature.inputs == {"x": ("float32", (None, 3))}
        assert signature.outputs == {"y": ("float32", (None, 3))}
        assert signature.method_name == "tensorflow/serving/predict"


def test_saved_model_of_tf2(tmp_path):
    model = _Doubler()
    tf.saved_model.save(
        model, str(tmp_path), signatures={"serving_default": model.serve, "count": model.count}
    )
    [meta_graph] = describe_saved_model(str(tmp_path))

    assert meta_graph.tags == ("serve",)
    assert list(meta_graph.signatures) == ["count", "serving_default"]
    assert meta_graph.signatures["serving_default"].outputs == {
        "label": ("string", (None,)),
        "y": ("float32", (None, 3)),
    }
    count = meta_graph.signatures["count"]
    assert count.inputs == {"ids": ("int64", None)}
    assert str(count.inputs["ids"]) == "int64<unknown rank>"
    assert str(meta_graph.signatures["serving_default"].inputs["x"]) == "float32[?, 3]"


def test_ops_in_functions_count(tmp_path):
    model = _Doubler()
    tf.saved_model.save(model, str(tmp_path), signatures=model.serve)
    [meta_graph] = describe_saved_model(str(tmp_path))

    graph = model.serve.get_concrete_function().graph
    assert meta_graph.num_ops > len(graph.get_operations())


def test_nothing_is_loaded(tmp_path):
    path = save_metagraphs(str(tmp_path / "model"), ["serve"])
    tf.io.gfile.rmtree(f"{path}/variables")
    [meta_graph] = describe_saved_model(path)
    assert meta_graph.tags == ("serve",)


@pytest.mark.parametrize(
    "content",
    [
        case(
            "exports",
            f"`describe_saved_model` of {given}",
            "The SavedModel at ",
            *says,
            values=content,
        )
        for given, content, *says in (
            ("garbage", b"\xff\xff\xff", "can't be read: ", "Copy its folder again, or export"),
            ("an empty file", b"", "is empty: it contains no metagraph. Export the model again"),
        )
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, content, refused):
    (tmp_path / "saved_model.pb").write_bytes(content)
    with refused(ValueError) as raised:
        describe_saved_model(str(tmp_path))
    assert str(tmp_path) in str(raised.value)

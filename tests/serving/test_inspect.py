"""Tests the content of metagraphs and the places of their ops, in real exports and in edited copies."""

import pytest
import tensorflow as tf

from tests.bad_input import case
from tests.estimator.export import small_export
from tests.estimator.export.small_export import call_model, linear
from tests.serving.exports import edited, save_graph, save_metagraphs, tpu_program
from tfx_tpu_trainer.serving import describe_saved_model, place_ops, read_saved_model

v1 = tf.compat.v1


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


def test_exchanges_between_cores_are_ops_of_tpus(tmp_path):
    exchanges = ["AllToAll", "CollectivePermute", "CrossReplicaSum", "XlaAllReduce"]
    nodes = [v1.NodeDef(name=op, op=op) for op in ("Neg", *exchanges)]
    path = save_graph(tmp_path / "model", v1.GraphDef(node=nodes), "serve", output="Neg:0")
    assert describe_saved_model(path)[0].tpu_ops == tuple(exchanges)


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


MARK = "_tpu_replicate"


def _placement(path, metagraph=1):
    return place_ops(read_saved_model(path).meta_graphs[metagraph])


def _mark_of(program):
    return next(node.attr[MARK] for node in program.node_def if node.op == "MatMul")


def test_each_op_is_where_the_model_put_it(exported):
    placement = _placement(exported)
    assert {"MatMul", "AddV2", "ArgMax"} <= set(placement.on_tpu)
    assert placement.on_tpu["MatMul"] == placement.on_tpu["ArgMax"] == 1
    assert placement.outside_compilation == {"AsString": 1}
    assert placement.before == {"ParseExampleV2": 1}
    assert (placement.after, placement.beside, placement.refused) == ((), (), ())
    assert placement.num_on_tpu == sum(placement.on_tpu.values())
    assert placement.num_on_host == 2
    assert placement.batch_sizes == ()


def test_for_a_cpu_all_is_on_the_host(exported):
    placement = _placement(exported, metagraph=0)
    assert placement.num_on_tpu == 0
    assert {"ParseExampleV2", "MatMul", "AsString"} <= set(placement.before)
    # Saving, restoring and initializing are not part of an answer.
    assert not {"SaveV2", "RestoreV2", "AssignVariableOp"} & set(placement.before)


def test_batches_of_the_models_own(exported_in_batches):
    placement = _placement(exported_in_batches)
    assert placement.batch_sizes == (2, 8)
    assert placement.on_tpu["MatMul"] == 1
    # model_fn adds 0 to what comes from the TPU.
    assert [node.split()[0] for node in placement.after] == ["AddV2"]


def test_ops_of_a_loop_count_once_with_their_body(tmp_path):
    def network(features):
        (y,) = tf.while_loop(lambda y: tf.norm(y) < 9.0, lambda y: [y * 2.0], [linear(features)])
        return {"y": y}

    placement = _placement(small_export.export_model(call_model(network), tmp_path))
    assert placement.on_tpu["MatMul"] == 1
    assert sum(n for op, n in placement.on_tpu.items() if op.endswith("While")) == 1
    # The body doubles, the condition squares and sums for the norm.
    assert {"Mul", "Less", "Sum"} <= set(placement.on_tpu)


def test_an_op_after_the_tpu_is_found(exported, tmp_path):
    def add_after(meta_graph):
        (call,) = [n for n in meta_graph.graph_def.node if n.op == "TPUPartitionedCall"]
        late = meta_graph.graph_def.node.add(name="late", op="Neg", input=[call.name])
        late.attr["T"].type = tf.float32.as_datatype_enum
        meta_graph.signature_def["serving_default"].outputs["y"].name = "late:0"

    placement = _placement(edited(exported, tmp_path / "copy", add_after))
    assert placement.after == ("Neg 'late'",)


def test_an_op_beside_the_computation_is_found(exported, tmp_path):
    def unmark(meta_graph):
        for node in tpu_program(meta_graph).node_def:
            if node.op == "MatMul":
                del node.attr[MARK]

    placement = _placement(edited(exported, tmp_path / "copy", unmark))
    assert [node.split()[0] for node in placement.beside] == ["MatMul"]
    assert "MatMul" not in placement.on_tpu


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("StringLength", "handles strings"),
        ("LookupTableFindV2", "looks up a table"),
        ("EagerPyFunc", "calls Python"),
        ("IteratorGetNext", "reads a dataset"),
    ],
)
def test_what_no_tpu_can_run_is_found(exported, tmp_path, op, reason):
    def add(meta_graph):
        program = tpu_program(meta_graph)
        program.node_def.add(name="odd", op=op).attr[MARK].CopyFrom(_mark_of(program))

    placement = _placement(edited(exported, tmp_path / "copy", add))
    assert placement.refused == (f"{op} 'odd', which {reason}",)

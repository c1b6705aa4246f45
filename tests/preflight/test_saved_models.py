"""The TPU programs of exported models: of version 1 and 2, with parts on the host and batching."""

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.bad_input import case, row
from tests.preflight.lowered import CHECK_ONLY
from tests.serving import exports
from tests.serving.exports import EACH_OTHER, IN_A_ROW, TWICE_EACH, library_of, save_graph
from tfx_tpu_trainer.estimator import export, tpu
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._hlo_module import HloModule
from tfx_tpu_trainer.preflight._results import LoweredStep
from tfx_tpu_trainer.preflight._saved_models import find_programs, lower_saved_model

v1 = tf.compat.v1

ROWS = 32


@pytest.fixture(scope="module")
def version_1(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Makes a model that is on the TPU, except for a text by outside_compilation."""
    return exports.train_and_export(tmp_path_factory.mktemp("version_1"))


@pytest.fixture(scope="module")
def version_2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model puts itself on the TPU, behind a BatchFunction, and adds on the host."""
    return exports.train_and_export(tmp_path_factory.mktemp("version_2"), batched=True)


def shapes(step: LoweredStep) -> dict[str, str]:
    return {each.op_name: each.shape for each in HloModule(step.hlo).parameters()}


def test_version_1_without_what_it_keeps_on_the_host(version_1):
    (step,) = lower_saved_model(version_1, batch_size=ROWS)
    assert step.problem is None, str(step.problem)
    assert (step.name, step.rows, step.num_replicas) == ("serve:serving_default", ROWS, 1)
    assert sorted(shapes(step).values()) == ["f32[2]", "f32[3,2]", "f32[32,3]"]
    assert {"weights", "bias"} < set(shapes(step))
    assert (step.parameter_count, step.variable_bytes) == (3 * 2 + 2, 4 * (3 * 2 + 2))
    (host,) = [finding for finding in step.findings if finding.kind == "host_op"]
    assert "Kept on the host by outside_compilation: 1 AsString" in host.message

    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is None, str(compiled.problem)
    assert compiled.flops >= 2 * ROWS * 3 * 2
    assert compiled.collective_bytes == 0


def test_version_2_behind_its_batching(version_2):
    (step,) = lower_saved_model(version_2, batch_size=8, signatures=["serving_default"])
    assert step.problem is None, str(step.problem)
    assert sorted(shapes(step).values()) == ["f32[2]", "f32[3,2]", "f32[8,3]"]
    (host,) = [finding for finding in step.findings if finding.kind == "host_op"]
    assert "after the TPU: AddV2 'add'" in host.message
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is None, str(compiled.problem)


def test_a_serving_step_is_of_one_core_whatever_the_slice(version_1):
    (step,) = lower_saved_model(version_1, batch_size=ROWS)
    (compiled,) = compile_steps([step], "v5e:2x4", CHECK_ONLY)
    assert compiled.problem is None


def test_every_batch_size_is_a_program_of_its_own(version_1):
    (few,), (many,) = (lower_saved_model(version_1, batch_size=rows) for rows in (1, 1024))
    assert "f32[1,3]" in shapes(few).values()
    assert "f32[1024,3]" in shapes(many).values()


def test_loops_and_branches_of_a_model_are_lowered(tmp_path):
    """Their bodies are functions inside of the TPU's function."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> tpu.TPUEstimatorSpec:
        del params
        scale = v1.get_variable("scale", [])
        x = features["x"]
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * scale), [0, x])
        y = tf.cond(tf.reduce_sum(y) > 0, lambda: y + 1.0, lambda: y)
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": y})
        loss = tf.reduce_mean(y - labels)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=str(tmp_path / "checkpoints")),
        use_tpu=False,
        train_batch_size=4,
    )
    batch = ({"x": np.ones([4, 3], np.float32)}, np.ones([4, 3], np.float32))
    estimator.train(lambda params: tf.data.Dataset.from_tensors(batch), steps=1)
    receiver_fn = export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    path = estimator.export_saved_model(str(tmp_path / "versions"), receiver_fn).decode()
    (step,) = lower_saved_model(path, batch_size=ROWS)
    assert step.problem is None, str(step.problem)
    opcodes = {each.opcode for each in HloModule(step.hlo).instructions()}
    assert {"while", "conditional"} <= opcodes
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is None, str(compiled.problem)


@row(
    "preflight",
    "a signature that the model has not",
    "no signature 'other': it has ['serving_default']",
)
def test_a_signature_that_is_not_there(version_1, refused):
    with refused(ValueError):
        lower_saved_model(version_1, batch_size=1, signatures=["other"])


@row(
    "preflight",
    "a model without a metagraph for TPUs",
    "has no metagraph with the tags ['serve', 'tpu']",
    "export",
)
def test_no_metagraph_for_tpus(version_1, tmp_path, refused):
    file = pathlib.Path(version_1) / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    del saved_model.meta_graphs[1:]
    (tmp_path / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    with refused(ValueError):
        lower_saved_model(str(tmp_path), batch_size=1)


@row(
    "preflight",
    "a model for TPUs of which nothing runs there",
    "Nothing of the SavedModel ",
    " runs on a TPU",
)
def test_nothing_of_it_on_a_tpu(version_1, tmp_path, refused):
    def take_the_host_graph(meta_graph: Any) -> None:
        file = pathlib.Path(version_1) / "saved_model.pb"
        host = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs[0]
        meta_graph.graph_def.CopyFrom(host.graph_def)
        for name, signature in host.signature_def.items():
            meta_graph.signature_def[name].CopyFrom(signature)

    path = exports.edited(version_1, tmp_path / "copy", take_the_host_graph)
    with refused(ValueError):
        lower_saved_model(path, batch_size=1)


def test_a_string_op_in_the_program(version_1, tmp_path):
    def compile_the_text_too(meta_graph: Any) -> None:
        for node in exports.tpu_program(meta_graph).node_def:
            node.attr.pop("_xla_outside_compilation", None)

    path = exports.edited(version_1, tmp_path / "copy", compile_the_text_too)
    (step,) = lower_saved_model(path, batch_size=1)
    assert step.problem is not None
    assert (step.problem.stage, step.problem.op_type) == ("lowering", "AsString")
    assert "handles strings" in step.problem.message
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is step.problem


def test_a_shape_that_nobody_knows(version_1, tmp_path):
    def forget_the_shape(meta_graph: Any) -> None:
        program = exports.tpu_program(meta_graph)
        for attributes in program.arg_attr.values():
            attributes.attr.pop("_output_shapes", None)

    path = exports.edited(version_1, tmp_path / "copy", forget_the_shape)
    (step,) = lower_saved_model(path, batch_size=1)
    assert step.problem is not None
    assert "to the TPU without a static shape: <unknown>" in step.problem.message
    assert "serving_input_receiver_fn" in step.problem.advice


@pytest.mark.parametrize("op", ["PartitionedCall", "BatchFunction"])
@pytest.mark.parametrize("calls", [TWICE_EACH, IN_A_ROW, EACH_OTHER])
def test_each_function_is_looked_into_once_however_often_it_is_called(calls, op):
    graph_def = library_of(calls, op)
    assert list(find_programs(graph_def, ["call:0"])) == []
    (program,) = library_of({"program": []}, op).library.function
    program.node_def[0].attr["_tpu_replicate"].s = b"cluster"
    graph_def.library.function.append(program)
    # The last one starts it; before, it returned a constant or called the first one again.
    node = graph_def.library.function[-2].node_def[-1]
    (call,) = library_of({}, "TPUPartitionedCall").node
    call.attr["f"].func.name = "program"
    graph_def.library.function[-2].ret["y"] = f"{call.name}:output:0"
    node.CopyFrom(call)
    (found,) = find_programs(graph_def, ["call:0"])
    assert [found.function, *(node.name for node in found.nodes)] == ["program", "one"]


def _without_function(graph_def: v1.GraphDef) -> None:
    del graph_def.library.function[:]


def _without_node(graph_def: v1.GraphDef) -> None:
    graph_def.node[0].input.append("gone:1")


def _without_result(graph_def: v1.GraphDef) -> None:
    graph_def.node[0].op = "PartitionedCall"
    graph_def.library.function[0].ret["y"] = "gone:output:0"


def _round_and_round(graph_def: v1.GraphDef) -> None:
    (program,) = graph_def.library.function
    program.node_def[0].attr["_tpu_replicate"].s = b"cluster"
    program.node_def[0].input.append("first:output:0")
    for name, other in (("first", "second"), ("second", "first")):
        program.node_def.add(name=name, op="TPUReplicatedInput", input=[f"{other}:output:0"])


@pytest.mark.parametrize(
    "damage",
    [
        case(
            "preflight",
            f"a model for TPUs whose graph {given}",
            f"The graph is damaged: {says}. Copy the model's folder again, or export the model again.",
            values=damage,
        )
        for given, says, damage in (
            ("calls a function that is missing", "it has no 'f0'", _without_function),
            ("reads a node that is missing", "it has no 'gone'", _without_node),
            ("has a function that returns a missing node", "it has no 'gone'", _without_result),
            ("has an input that leads to itself", "'first' is its own input", _round_and_round),
        )
    ],
)
def test_a_damaged_graph_is_named(tmp_path, damage, refused):
    graph_def = library_of({"f0": []}, "TPUPartitionedCall")
    damage(graph_def)
    path = save_graph(tmp_path / "model", graph_def, "serve", "tpu", output="call:0")
    with refused(ValueError):
        lower_saved_model(path, batch_size=1)

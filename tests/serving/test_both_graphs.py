"""The two metagraphs of an export are compared on a CPU: what differs is found, and what is alike passes."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export import small_export
from tests.serving.exports import (
    ROWS,
    WEIGHTS,
    edited,
    examples,
    save_metagraphs,
    tpu_program,
)
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec, inference_on_tpu
from tfx_tpu_trainer.serving import compare_graphs, inputs_to_ask

v1 = tf.compat.v1

VERSIONS = pytest.mark.parametrize("version", [1, 2])


def _model(fault):
    """A ModelCall whose metagraph for TPU hosts has a fault; with version 2 it batches to 2 or 8 rows."""

    def call(features, labels, mode, use_tpu):
        weights = v1.get_variable("w", initializer=WEIGHTS)

        def network(x):
            # Version 1 traces model_fn in a function, and leaves use_tpu False.
            wrong = fault if use_tpu or v1.get_default_graph().building_function else ""
            y = tf.matmul(x, weights) + (0.501 if wrong == "constant" else 0.5)
            y = tf.nn.relu(y) if wrong == "branch" else y
            if fault == "padding":
                y -= tf.reduce_mean(y, axis=0)
            outputs = [y, -y, tf.reduce_sum(y, axis=1) * (1.1 if wrong == "value" else 1.0)]
            return [outputs[i] for i in ((1, 0, 2) if wrong == "swapped" else (0, 1, 2))]

        if use_tpu:
            y, opposite, value = inference_on_tpu(network, [features["x"]], 1, 8, 10**7, [2, 8])
        else:
            y, opposite, value = network(features["x"])
        if fault == "outside":
            on_tpu = use_tpu or v1.get_default_graph().building_function
            text = v1.tpu.outside_compilation(tf.as_string, tf.argmax(-y if on_tpu else y, axis=1))
        else:
            text = v1.tpu.outside_compilation(tf.as_string, tf.argmax(y, axis=1))
        outputs = {
            "serving_default": export.PredictOutput({"y": y, "opposite": opposite, "text": text}),
            "value": export.RegressionOutput(value),
        }
        return TPUEstimatorSpec(mode, predictions={"y": y}, export_outputs=outputs)

    return call


def _receiver_fn():
    parse = export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    return parse()


def _export(fault, folder, version):
    return small_export.export_model(
        _model(fault), folder, serving_input_receiver_fn=_receiver_fn, api_version=version
    )


def _ask(path):
    return compare_graphs(path, inputs_to_ask(path, examples(ROWS)))


PADDED = {1: "4 rows, 3 rows padded to 8", 2: "8 rows, 1 row padded to 2, 3 rows padded to 8"}


@VERSIONS
def test_graphs_that_answer_alike_pass(tmp_path, version):
    finding = _ask(_export("", tmp_path, version))
    assert finding == (
        "passed",
        f"serving_default, value: {PADDED[version]}; largest difference 0",
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("branch", "serving_default['opposite'], row "),
        ("constant", "value['outputs'], row "),
        ("outside", "serving_default['text'], row 0 of "),
        ("padding", "padded to 8: differs by "),
        ("swapped", "serving_default['text'], row 0 of "),
        ("value", "value['outputs'], row "),
    ],
)
@VERSIONS
def test_planted_faults_are_found(tmp_path, version, fault, said):
    finding = _ask(_export(fault, tmp_path, version))
    assert finding.outcome == "failed"
    assert said in finding.detail
    assert ("padding rows change" in finding.detail) == (fault == "padding")
    if (version, fault) == (1, "constant"):
        # Both columns of row 2 by 0.001; the largest sum is that of row 1, 1.75 + 36.
        assert f"differs by {0.002 / 37.75:.2g} of its largest value" in finding.detail


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return _export("", tmp_path_factory.mktemp("sound"), 1)


def _swap(meta_graph):
    outputs = meta_graph.signature_def["serving_default"].outputs
    outputs["y"].name, outputs["opposite"].name = outputs["opposite"].name, outputs["y"].name


def _drop(meta_graph):
    del meta_graph.signature_def["serving_default"].outputs["y"]


def _break(meta_graph):
    program = tpu_program(meta_graph)
    next(node for node in program.node_def if node.op == "MatMul").attr["transpose_a"].b = True


def _add_op_of_tpus(meta_graph):
    program = tpu_program(meta_graph)
    product = next(node for node in program.node_def if node.op == "MatMul")
    node = program.node_def.add(name="odd", op="TPURoundRobin", input=[product.input[0]])
    product.input[0] = f"{node.name}:output:0"


def _two_cores(meta_graph):
    for node in tpu_program(meta_graph).node_def:
        if node.op == "TPUReplicatedOutput":
            node.attr["num_replicas"].i = 2


@pytest.mark.parametrize(
    ("edit", "outcome", "said"),
    [
        (_swap, "failed", "serving_default['opposite'], row 1 of 4 rows: differs by 2 of"),
        (_drop, "failed", "only serve answers serving_default['y']"),
        (_break, "failed", "serve, tpu can't answer serving_default on this CPU: "),
        (_add_op_of_tpus, "not run", "could not run: op TPURoundRobin"),
        (_two_cores, "not run", "could not run: op TPUReplicatedOutput"),
    ],
)
def test_other_exports_are_judged_by_what_they_do(sound, tmp_path, edit, outcome, said):
    finding = _ask(edited(sound, tmp_path / "copy", edit))
    assert finding.outcome == outcome
    assert said in finding.detail


def test_what_was_not_asked_is_said(sound):
    rows = np.array(examples(ROWS), dtype=object)
    assert _ask(sound).detail.startswith("serving_default, value: ")
    finding = compare_graphs(sound, {"value": {"inputs": rows}})
    assert finding == (
        "passed",
        f"value: {PADDED[1]}; largest difference 0; not asked: serving_default",
    )
    assert compare_graphs(sound, {}) == (
        "not run",
        "there are no rows for its signatures (serving_default, value)",
    )


def test_numbers_are_made_up_where_there_are_no_rows(tmp_path):
    path = save_metagraphs(str(tmp_path / "both"), ["serve"], ["serve", "tpu"])
    assert compare_graphs(path, inputs_to_ask(path)).detail.startswith("serving_default: 3 rows")
    path = save_metagraphs(str(tmp_path / "one"), ["serve"])
    assert inputs_to_ask(path) == {}
    assert compare_graphs(path, {}) == ("not run", "it has no metagraph for TPU hosts")

"""Evaluation, prediction, export, the host, and places without embeddings."""

import functools
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.estimator.tpu.embedding import embedded
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import export, tpu
from tfx_tpu_trainer.estimator.places.place import Call
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu.cores.run import core_run_of
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import TPUSystem
from tfx_tpu_trainer.estimator.tpu.embedding.trace import trace_with_embeddings
from tfx_tpu_trainer.serving._both_graphs import on_cpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

PARAMETERS = experimental.AdagradParameters(0.1)


def _spec(**options: Any) -> experimental.EmbeddingConfigSpec:
    return experimental.EmbeddingConfigSpec(embedded.columns(), PARAMETERS, **options)


def _trained(folder, *, cores, **of_model):
    model_fn = embedded.model_fn_for(tpu, **of_model)
    estimator = embedded.estimator(tpu, folder, _spec(), model_fn, cores=cores)
    estimator.train(embedded.input_fn, max_steps=4)
    return estimator


def _on_host(folder, **options):
    model_fn = embedded.model_fn_for(tpu, **options)
    return embedded.estimator(tpu, folder, _spec(), model_fn, cores=None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model trained on 2 cores."""
    return _trained(tmp_path_factory.mktemp("trained"), cores=2)


@pytest.fixture(scope="module")
def outputs(trained):
    """What it predicts for all rows."""
    return [row["output"] for row in trained.predict(embedded.finite_input_fn)]


@mostly_swept("rows", [24, 21, 3], kept=[3])
@pytest.mark.behaviour(377)
def test_evaluation_looks_up_only_to_the_last_row(trained, rows):
    input_fn = functools.partial(embedded.finite_input_fn, rows=rows)
    before = embedded.variables(trained)
    metrics = trained.evaluate(input_fn)
    expected = _on_host(trained.model_dir).evaluate(input_fn)
    for name in ("error", "mean", "global_step"):
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], metrics["error"], rtol=1e-5)
    for name, value in embedded.variables(trained).items():
        np.testing.assert_array_equal(value, before[name])


@mostly_swept("rows", [24, 21, 3], kept=[21])
@pytest.mark.behaviour(377)
def test_prediction_pads_and_cuts(trained, rows):
    input_fn = functools.partial(embedded.finite_input_fn, rows=rows)
    outputs = [row["output"] for row in trained.predict(input_fn)]
    expected = [row["output"] for row in _on_host(trained.model_dir).predict(input_fn)]
    assert len(outputs) == rows
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.behaviour(271)
def test_scaffold_fn_finds_the_tables(tmp_path):
    seen = []

    def scaffold_fn():
        seen.append({variable.op.name for variable in v1.global_variables()})
        return v1.train.Scaffold()

    _trained(tmp_path, cores=2, scaffold_fn=scaffold_fn)
    (names,) = seen
    assert {embedded.WORD_TABLE, embedded.TAG_TABLE, f"{embedded.TAG_TABLE}/Adagrad"} <= names


@pytest.mark.behaviour(277)
def test_a_checkpoint_has_the_names_of_the_host_and_no_more(trained, tmp_path):
    host = _trained(
        tmp_path,
        cores=None,
        # The tables' optimizer for all: on the host there is but one.
        optimizer=lambda: v1.train.AdagradOptimizer(0.1),
    )
    of_output = {"out/Adagrad"}
    assert set(trained.get_variable_names()) == set(host.get_variable_names()) - of_output


@pytest.mark.behaviour(379)
def test_the_host_ignores_the_spec(tmp_path):
    """Its tables train with the model's optimizer, as ordinary embeddings do."""
    host = _trained(tmp_path, cores=None)
    ordinary = embedded.plain_training(
        4, lambda step: v1.train.GradientDescentOptimizer(embedded.RATE)
    )
    assert set(host.get_variable_names()) == {*ordinary, "global_step"}
    for name, value in ordinary.items():
        np.testing.assert_allclose(host.get_variable_value(name), value, rtol=1e-5, atol=1e-6)


def test_a_warm_start_reaches_the_tables(trained, outputs, tmp_path):
    """By default it is for trainable variables, which tables are, as on the host."""
    started = embedded.estimator(
        tpu,
        tmp_path,
        _spec(),
        embedded.model_fn_for(tpu),
        cores=2,
        warm_start_from=trained.model_dir,
    )
    found = [row["output"] for row in started.predict(embedded.finite_input_fn)]
    np.testing.assert_allclose(found, outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.behaviour(225)
def test_padding_is_seen_beside_activations(trained):
    def model_fn(features, labels, mode, params):
        spec = embedded.model_fn_for(tpu)(features, labels, mode, params)
        is_padding = features["is_padding"]
        return spec._replace(predictions={**spec.predictions, "padding": is_padding})

    estimator = embedded.estimator(tpu, trained.model_dir, _spec(), model_fn, cores=2)
    rows = list(estimator.predict(lambda params: embedded.finite_input_fn(params).take(1)))
    assert not any(row["padding"] for row in rows)
    assert len(rows) == embedded.BATCH


def test_an_export_serves_ids_on_cpu_and_tpu(trained, outputs, tmp_path):
    estimator = embedded.estimator(
        tpu,
        trained.model_dir,
        _spec(),
        embedded.model_fn_for(
            tpu, export_outputs=lambda output: {"out": export.PredictOutput({"output": output})}
        ),
        cores=2,
    )

    def receiver_fn():
        ids = {name: v1.sparse_placeholder(tf.int64, [None, None]) for name in ("word", "tag")}
        return export.ServingInputReceiver(ids, ids)

    path = estimator.export_saved_model(str(tmp_path), receiver_fn).decode()
    words, tags, _ = embedded.data()
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ["serve"], path)
        signature = loaded.signature_def["out"]
        word, tag = embedded.sparse_value(words), embedded.sparse_value(tags)
        feed = {}
        for name, value in (("word", word), ("tag", tag)):
            parts = signature.inputs[name].coo_sparse
            feed |= {
                parts.indices_tensor_name: value.indices,
                parts.values_tensor_name: value.values,
                parts.dense_shape_tensor_name: value.dense_shape,
            }
        served = session.run(signature.outputs["output"].name, feed)
    np.testing.assert_allclose(served, outputs, rtol=1e-5, atol=1e-6)
    with tf.Graph().as_default() as graph:
        on_tpu = _meta_graph(path, {"serve", "tpu"})
        saver = v1.train.import_meta_graph(on_cpu(on_tpu))
        with v1.Session() as session:
            saver.restore(session, f"{path}/variables/variables")
            of_tpu = session.run(on_tpu.signature_def["out"].outputs["output"].name, feed)
        names = {
            variable.op.name for variable in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
        }
    assert {embedded.WORD_TABLE, embedded.TAG_TABLE} <= names
    np.testing.assert_allclose(of_tpu, outputs, rtol=1e-5, atol=1e-6)


def _meta_graph(path: str, tags: set[str]) -> v1.MetaGraphDef:
    with open(f"{path}/saved_model.pb", "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    (meta_graph,) = (m for m in saved.meta_graphs if set(m.meta_info_def.tags) == tags)
    return meta_graph


def test_a_tpus_session_has_no_embeddings_and_says_so():
    system = TPUSystem(master="grpc://10.0.0.2:8470", num_cores=8, num_hosts=1, job=None)
    run = core_run_of(
        "train", config=tpu.RunConfig(), global_batch_size=8, batch_axis=None, system=system
    )
    call = Call(mode="train", config=tpu.RunConfig(), call_input_fn=dict, call_model_fn=dict)
    with pytest.raises(ValueError, match=r"not implemented in a TPU's session.*use_tpu=False"):
        trace_with_embeddings(_spec(), run, call)


@pytest.mark.sweep
def test_a_program_in_v1_mode_trains_its_tables_too(tmp_path):
    program = textwrap.dedent(
        f"""
        import tensorflow.compat.v1 as tf
        tf.disable_v2_behavior()
        from tests.estimator.tpu.embedding import embedded, test_training
        from tfx_tpu_trainer.estimator import tpu
        parameters, ordinary = test_training.OPTIMIZERS["adam"]
        trained = test_training._train({str(tmp_path)!r}, parameters, cores=2)
        test_training._assert_ordinary(trained, embedded.plain_training(test_training.STEPS, ordinary))
        """
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

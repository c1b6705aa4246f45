"""The same model, exported by the original's TPUEstimator (recorded) and by ours.

`record_original.py` made the recording; its docstring has the command.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from tests.estimator.export import recorded_model, saved_model_facts, tpu_graph_on_host
from tfx_tpu_trainer.estimator import export, tpu

CASES = ("default", "signatures")


@pytest.fixture(scope="module")
def recorded():
    path = os.path.join(os.path.dirname(__file__), "original_exports.json")
    with open(path, encoding="utf-8") as file:
        return json.load(file)["cases"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Case -> SavedModel, trained and exported as `record_original.py` does."""
    folder = tmp_path_factory.mktemp("exported")
    vocabulary = recorded_model.write_vocabulary(str(folder / "colours.txt"))

    def train_and_export(case):
        estimator = tpu.TPUEstimator(
            model_fn=recorded_model.model_fn_for(tpu, export, case),
            config=tpu.RunConfig(model_dir=str(folder / case)),
            use_tpu=False,
            train_batch_size=4,
        )
        estimator.train(recorded_model.training_input_fn, max_steps=2)
        return estimator.export_saved_model(
            str(folder / f"{case}_export"), recorded_model.receiver_fn(export, vocabulary)
        ).decode()

    return {case: train_and_export(case) for case in CASES}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "fact",
    [
        "tags",
        "ops",
        "tpu_calls",
        "tpu_call_ops",
        "replicated_ops",
        "outside_compiled_ops",
        "assets",
        "collections",
    ],
)
@pytest.mark.behaviour(311, 327, 331, 335, 343)
def test_both_graphs_are_made_of_the_same(exported, recorded, case, fact):
    ours = saved_model_facts.read_facts(exported[case])
    assert [graph[fact] for graph in ours] == [
        graph[fact] for graph in recorded[case]["meta_graphs"]
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.behaviour(343)
def test_the_vocabulary_is_there_once_for_both_graphs(exported, case):
    (name,) = os.listdir(f"{exported[case]}/assets")
    with open(f"{exported[case]}/assets/{name}", encoding="utf-8") as file:
        assert tuple(file.read().split()) == recorded_model.COLOURS


@pytest.mark.parametrize("case", CASES)
@pytest.mark.behaviour(316, 320, 321)
def test_host_signatures_are_the_same(exported, recorded, case):
    ours = saved_model_facts.read_facts(exported[case])
    assert ours[0]["signatures"] == recorded[case]["meta_graphs"][0]["signatures"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.behaviour(329)
def test_tpu_signatures_are_the_same_but_say_their_shapes(exported, recorded, case):
    ours = saved_model_facts.read_facts(exported[case])
    theirs = recorded[case]["meta_graphs"][1]["signatures"]
    assert ours[1]["signatures"] == ours[0]["signatures"]
    for name, signature in theirs.items():
        assert signature["inputs"] == ours[1]["signatures"][name]["inputs"]
        assert signature["method"] == ours[1]["signatures"][name]["method"]
        outputs = ours[1]["signatures"][name]["outputs"]
        # What leaves a TPUPartitionedCall has no known rank in the original.
        assert signature["outputs"] == {key: [dtype, None] for key, (dtype, _) in outputs.items()}
    assert set(theirs) == set(ours[1]["signatures"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.behaviour(348)
def test_predictions_are_the_same(exported, recorded, case):
    ours = recorded_model.serve(exported[case])
    assert set(ours) == set(recorded[case]["served"])
    for key, value in recorded[case]["served"].items():
        np.testing.assert_allclose(ours[key], value, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_tpu_computation_gives_the_predictions_of_the_host(exported, case):
    on_host = recorded_model.serve(exported[case])
    of_tpu = tpu_graph_on_host.serve(exported[case], {"examples": recorded_model.serialized_rows()})
    for key, value in on_host.items():
        np.testing.assert_allclose(of_tpu[key], value, atol=1e-6)


@pytest.mark.behaviour(331)
def test_the_tpu_computation_classifies_outside(exported):
    answers = tpu_graph_on_host.serve(
        exported["signatures"],
        {"inputs": recorded_model.serialized_rows()},
        signature="classify",
    )
    assert answers["classes"].tolist() == [[b"1"], [b"1"], [b"1"]]
    np.testing.assert_allclose(np.sum(answers["scores"], axis=1), 1.0, atol=1e-6)

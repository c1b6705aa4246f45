"""Models, exported in every way by the original's estimators (recorded) and by ours.

`record_original.py` made the recording; its docstring has the command.
"""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export import recorded_model, recorded_serving, saved_model_facts, small_export
from tfx_tpu_trainer import estimator as estimator_api
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, export, tpu

CASES = ("default", "signatures")
# Names of the original that ours does not have, and why.
LEFT_OUT = {
    "estimator.export": {},
    "estimator.tpu": {},
    "estimator.experimental": {
        "hooks, not of an export": [
            "InMemoryEvaluatorHook",
            "make_early_stopping_hook",
            "make_stop_at_checkpoint_step_hook",
            "stop_if_higher_hook",
            "stop_if_lower_hook",
            "stop_if_no_decrease_hook",
            "stop_if_no_increase_hook",
        ],
        "parts of canned estimators": [
            "LinearSDCA",
            "RNNClassifier",
            "RNNEstimator",
            "call_logit_fn",
        ],
    },
}


@pytest.fixture(scope="module")
def recorded():
    path = os.path.join(os.path.dirname(__file__), "original_exports.json")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


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
        graph[fact] for graph in recorded["cases"][case]["meta_graphs"]
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
    assert ours[0]["signatures"] == recorded["cases"][case]["meta_graphs"][0]["signatures"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.behaviour(329)
def test_tpu_signatures_are_the_same_but_say_their_shapes(exported, recorded, case):
    ours = saved_model_facts.read_facts(exported[case])
    theirs = recorded["cases"][case]["meta_graphs"][1]["signatures"]
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
    assert set(ours) == set(recorded["cases"][case]["served"])
    for key, value in recorded["cases"][case]["served"].items():
        np.testing.assert_allclose(ours[key], value, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_tpu_computation_gives_the_predictions_of_the_host(exported, case):
    on_host = recorded_model.serve(exported[case])
    of_tpu = small_export.serve_tpu_graph(
        exported[case], {"examples": recorded_model.serialized_rows()}
    )
    for key, value in on_host.items():
        np.testing.assert_allclose(of_tpu[key], value, atol=1e-6)


@pytest.mark.behaviour(331)
def test_the_tpu_computation_classifies_outside(exported):
    answers = small_export.serve_tpu_graph(
        exported["signatures"], {"inputs": recorded_model.serialized_rows()}, signature="classify"
    )
    assert answers["classes"].tolist() == [[b"1"], [b"1"], [b"1"]]
    np.testing.assert_allclose(np.sum(answers["scores"], axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("module", list(LEFT_OUT))
def test_the_names_of_the_original_are_there(recorded, module):
    ours = estimator_api
    for part in module.split(".")[1:]:
        ours = getattr(ours, part)
    left_out = {name for names in LEFT_OUT[module].values() for name in names}
    missing = {name for name in recorded["names"][module] if not hasattr(ours, name)}
    assert missing - {"experimental"} <= left_out


@pytest.fixture(scope="module")
def exported_by(tmp_path_factory):
    """Way -> SavedModel, trained and exported as `record_original.py` does."""
    folder = tmp_path_factory.mktemp("modes")
    settings = {
        "model_fn": recorded_serving.supervised_model_fn_for(tpu.TPUEstimatorSpec),
        "config": tpu.RunConfig(model_dir=str(folder / "modes")),
        "use_tpu": False,
        "train_batch_size": 4,
    }
    estimator = tpu.TPUEstimator(**settings)
    estimator.train(recorded_serving.input_fn, max_steps=1)
    serving = recorded_serving.receiver_fn(export)
    supervised = recorded_serving.supervised_receiver_fn(
        estimator_api.experimental.build_raw_supervised_input_receiver_fn
    )
    plain = Estimator(
        recorded_serving.model_fn_for(EstimatorSpec, export.PredictOutput, tpu, "plain"),
        model_dir=str(folder / "plain"),
        params={"use_tpu": False},
    )
    plain.train(recorded_serving.input_fn, max_steps=1)
    return {
        way: path.decode()
        for way, path in {
            "train": estimator.export_saved_model(
                str(folder / "train"), supervised, experimental_mode="train"
            ),
            "eval": estimator.export_saved_model(
                str(folder / "eval"), supervised, experimental_mode="eval"
            ),
            "all": estimator.experimental_export_all_saved_models(
                str(folder / "all"), {"train": supervised, "eval": supervised, "infer": serving}
            ),
            "old_name": estimator.export_savedmodel(str(folder / "old"), serving),
            "old_name_stripped": estimator.export_savedmodel(
                str(folder / "stripped"), serving, strip_default_attrs=True
            ),
            "plain_for_tpu": tpu.export_estimator_savedmodel(
                plain, str(folder / "plain_for_tpu"), serving
            ),
        }.items()
    }


WAYS = ("train", "eval", "all", "old_name", "old_name_stripped", "plain_for_tpu")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fact", ["tags", "tpu_calls", "collections", "default_attributes"])
@pytest.mark.behaviour(311, 336, 338, 345, 350)
def test_the_graphs_are_the_originals(exported_by, recorded, way, fact):
    ours = saved_model_facts.read_facts(exported_by[way])
    theirs = recorded["modes"][way]["meta_graphs"]
    assert [graph[fact] for graph in ours] == [graph[fact] for graph in theirs]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.behaviour(337, 350)
def test_signatures_are_the_originals(exported_by, recorded, way):
    ours = saved_model_facts.read_facts(exported_by[way])
    for graph, theirs in zip(ours, recorded["modes"][way]["meta_graphs"], strict=True):
        if "tpu" in graph["tags"]:  # the original's say no shapes; ours are those of the host
            assert graph["signatures"] == ours[-2]["signatures"]
        else:
            assert graph["signatures"] == theirs["signatures"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.behaviour(315, 338)
def test_the_variables_are_the_originals(exported_by, recorded, way):
    variables = dict(tf.train.list_variables(f"{exported_by[way]}/variables/variables"))
    assert variables == recorded["modes"][way]["variables"]


@pytest.mark.behaviour(336)
def test_the_original_writes_an_empty_model_where_we_refuse(recorded):
    """With export_to_cpu=False; `test_supervised_metagraph.py` has the error that we raise."""
    theirs = recorded["modes"]["eval_without_cpu"]
    assert theirs == {"meta_graphs": [], "variables": None}


@pytest.fixture(scope="module", params=recorded_serving.CASES)
def version_2(request, tmp_path_factory, recorded):
    """What a case of version 2 gives, ours and the original's."""
    folder = tmp_path_factory.mktemp(request.param)
    estimator = tpu.TPUEstimator(
        recorded_serving.model_fn_for(
            tpu.TPUEstimatorSpec, export.PredictOutput, tpu, request.param
        ),
        config=tpu.RunConfig(model_dir=str(folder / "model")),
        use_tpu=False,
        train_batch_size=4,
        export_saved_model_api_version=2,
    )
    estimator.train(recorded_serving.input_fn, max_steps=1)
    path = estimator.export_saved_model(
        str(folder / "export"), recorded_serving.receiver_fn(export)
    ).decode()
    return path, recorded["version_2"][request.param]


@pytest.mark.parametrize(
    "fact", ["tags", "ops", "tpu_calls", "tpu_call_ops", "replicated_ops", "batch_functions"]
)
@pytest.mark.behaviour(325, 332, 333, 335)
def test_version_2_is_made_of_the_same(version_2, fact):
    path, theirs = version_2
    ours = saved_model_facts.read_facts(path)
    assert [graph[fact] for graph in ours] == [graph[fact] for graph in theirs["meta_graphs"]]


@pytest.mark.behaviour(332)
def test_batching_is_told_to_the_op(version_2):
    """The numbers of NUMBERS; a queue depth of 100 where none is given, 7 where it is."""
    path, theirs = version_2
    (of_host, of_tpu) = saved_model_facts.read_facts(path)
    assert of_host["batch_functions"] == []
    for facts in of_tpu["batch_functions"]:
        depth = facts.pop("max_enqueued_batches")
        assert facts == recorded_serving.NUMBERS
        assert depth == theirs["meta_graphs"][1]["batch_functions"][0]["max_enqueued_batches"]
        assert depth in (7, 100)


@pytest.mark.behaviour(325, 332, 333)
def test_version_2_serves_the_same_on_hosts_and_on_tpus(version_2):
    path, theirs = version_2
    np.testing.assert_allclose(recorded_serving.serve(path), theirs["served"], atol=1e-6)
    of_tpu = small_export.serve_tpu_graph(path, {"x": recorded_serving.ROWS})["y"]
    np.testing.assert_allclose(of_tpu, theirs["served"], atol=1e-6)

"""What is found before any training starts, through the executor; nothing stays behind."""

from __future__ import annotations

import json
import os

import pytest

from tests.component import small_model
from tests.component.execution import Execution, examples_of, records


def _module_file(folder, text):
    path = folder / "written_model.py"
    path.write_text(text)
    return str(path)


def _fails(execution, message):
    with pytest.raises(ValueError, match=message) as caught:
        execution.run()
    assert "\n" not in str(caught.value)
    assert execution.files() == []
    # Not even the graph was written: training hadn't started.
    assert os.listdir(execution.outputs["model_run"][0].uri) == []


def test_a_split_that_is_not_there(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, train_args=json.dumps({"num_steps": 5, "splits": ["trian"]})
    )
    _fails(execution, "train split 'trian' is not among the splits .* did you mean 'train'")


def test_a_split_without_files(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.inputs["examples"] = [
        examples_of(tmp_path / "rows", train=records("train", 70), eval=[])
    ]
    for name in os.listdir(tmp_path / "rows" / "Split-eval"):
        os.remove(tmp_path / "rows" / "Split-eval" / name)
    _fails(execution, "eval split 'eval' has no files in .*Split-eval; run the component")


@pytest.mark.parametrize("empty", ["train", "eval"])
def test_a_split_without_rows(tmp_path, empty):
    execution = Execution.of_trainer(tmp_path)
    rows = {"train": records("train", 70), "eval": records("eval", 70), empty: []}
    execution.inputs["examples"] = [examples_of(tmp_path / "rows", **rows)]
    _fails(execution, f"split '{empty}' has no rows; check the data")


def test_fewer_rows_than_a_batch(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.inputs["examples"] = [
        examples_of(tmp_path / "rows", train=records("train", 50), eval=records("eval", 10))
    ]
    _fails(
        execution, "train_batch_size=64 is larger than the split 'train', which has 50 rows, .*50"
    )


def test_rows_that_are_not_transforms(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.inputs["examples"] = [
        examples_of(tmp_path / "rows", train=[b""] * 70, eval=records("eval", 10))
    ]
    _fails(
        execution, "split 'train' can't be read with Transform's schema: .*_xf.*; give examples="
    )


def test_a_label_that_transform_did_not_output(tmp_path):
    execution = Execution.of_trainer(tmp_path, label_key="tip_xf")
    _fails(execution, "label_key='tip_xf' is not an output of Transform; did you mean 'tips_xf'")


def test_no_label_key_for_a_model_that_takes_labels(tmp_path):
    execution = Execution.of_trainer(tmp_path, label_key=None)
    _fails(execution, "label_key is not set, but model_fn takes labels; .*'tips_xf'")


def test_a_module_without_model_fn(tmp_path):
    path = _module_file(tmp_path, "def build_model(): pass\n")
    execution = Execution.of_trainer(tmp_path, module=None, module_file=path)
    _fails(execution, r"has no model_fn; define model_fn\(.*its functions are: build_model\)")


def test_a_model_fn_with_wrong_arguments(tmp_path):
    path = _module_file(tmp_path, "def model_fn(x, y, params): pass\n")
    execution = Execution.of_trainer(tmp_path, module=None, module_file=path)
    _fails(execution, r"model_fn .* has an argument 'x' .* it takes \(x, y, params\); allowed are")


def test_a_batch_size_that_does_not_divide(tmp_path):
    execution = Execution.of_trainer(tmp_path, use_tpu=1, num_shards=7)
    _fails(execution, "train_batch_size=64 is not divisible by num_shards=7: .* use 63 or 70")


def test_no_steps(tmp_path):
    _fails(Execution.of_trainer(tmp_path, steps=0), r"train_args\.num_steps=0")


def test_a_model_folder_that_cannot_be_written(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    execution.model.uri = str(blocked / "model")
    _fails(execution, f"the output folder {blocked}/model can't be written to: .*; check")


def test_a_checkpoint_root_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    execution = Execution.of_trainer(tmp_path, checkpoint_root=str(blocked / "checkpoints"))
    message = (
        rf"checkpoint folder \(setting checkpoint_root\) {blocked}/checkpoints/.* can't be written"
    )
    _fails(execution, message)


def test_a_serving_receiver_that_fails(tmp_path):
    path = _module_file(
        tmp_path,
        f"from {small_model.__name__} import model_fn\n"
        "def serving_input_receiver_fn(): raise KeyError('fare')\n",
    )
    execution = Execution.of_trainer(tmp_path, module=None, module_file=path)
    _fails(execution, "serving_input_receiver_fn fails, .* KeyError: 'fare'")


def test_a_serving_receiver_that_gives_none(tmp_path):
    path = _module_file(
        tmp_path,
        f"from {small_model.__name__} import model_fn\ndef serving_input_receiver_fn(): pass\n",
    )
    execution = Execution.of_trainer(tmp_path, module=None, module_file=path)
    _fails(execution, "serving_input_receiver_fn gave None; let it return a ServingInputReceiver")


def test_a_base_model_without_a_saved_model(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.add_model(str(tmp_path / "nothing"))
    _fails(execution, "base_model has no SavedModel in .*nothing/Format-Serving; give the output")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_every_steps": 5}, "eval_every_steps=5: the chief of a cluster .* 'evaluator' task"),
        ({"eval_every_secs": 9}, "eval_every_secs=9: the chief of a cluster .* 'evaluator' task"),
        ({"use_tpu": 1, "master": "emulated"}, "use_tpu=True: the parameter servers .*=False"),
    ],
)
def test_what_a_cluster_cannot_do(tmp_path, monkeypatch, settings, message):
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    execution = Execution.of_trainer(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        execution.run()
    # The other hosts are told.
    status = json.loads((tmp_path / "model_run" / "chief_status.json").read_text())
    assert status["state"] == "failed" and "ValueError: " in status["message"]

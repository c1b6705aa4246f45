"""Tests errors found before any training starts, through the executor; nothing stays behind."""

from __future__ import annotations

import json
import os

import pytest
from tfx import v1 as tfx

from tests.bad_input import case, row
from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution


@pytest.fixture
def fails(refused):
    """Runs an execution that is rejected before anything is trained or written."""

    def run(execution):
        with refused(ValueError):
            execution.run()
        assert execution.files() == []
        # Not even the graph was written: training hadn't started.
        assert os.listdir(execution.outputs["model_run"][0].uri) == []

    return run


def _with_module(folder, text):
    path = folder / "written_model.py"
    path.write_text(text)
    return Execution.of_trainer(folder, module=None, module_file=str(path))


class TestOtherArtifacts:
    @row(
        "data",
        "a Schema artifact without a file",
        "must contain exactly one file, but it has",
        "none; rerun the component that writes it",
    )
    def test_a_schema(self, tmp_path, fails):
        execution = Execution.of_trainer(tmp_path)
        (tmp_path / "schema").mkdir()
        execution.inputs["schema"][0].uri = str(tmp_path / "schema")
        fails(execution)

    @pytest.mark.parametrize(
        "content",
        [
            case(
                "data",
                "a HyperParameters artifact without a file",
                "must contain exactly one file, but it has",
                "none; rerun the component that writes it",
                values=None,
            ),
            case(
                "data",
                "hyperparameters that are not JSON",
                "hyperparameters: ",
                "best_hyperparameters.txt is not valid JSON (",
                "run the Tuner again",
                values=b"{",
            ),
            case(
                "data",
                "hyperparameters with bytes that are not text",
                "best_hyperparameters.txt is not valid JSON (UnicodeDecodeError",
                "run the Tuner again",
                values=b'{"a": "\xff"}',
            ),
            case(
                "data",
                "hyperparameters nested 100,000 deep",
                "best_hyperparameters.txt is not valid JSON (RecursionError",
                "run the Tuner again",
                values=b'{"a":' * 100_000,
            ),
            case(
                "data",
                "hyperparameters `[1, 2]`",
                "best_hyperparameters.txt contains [1, 2] instead of values by name; write an object",
                values=b"[1, 2]",
            ),
            case(
                "data",
                "hyperparameters whose `values` are a list",
                "best_hyperparameters.txt contains [1] instead of values by name; write an object",
                values=b'{"values": [1]}',
            ),
            case(
                "data",
                "a hyperparameter `batch_size`",
                "has a value for 'batch_size', which the engine sets itself; rename it in the Tuner",
                values=b'{"values": {"batch_size": 3}}',
            ),
            case(
                "data",
                "a hyperparameter that is NaN",
                "best_hyperparameters.txt: 'width'=nan is not a JSON value; run the Tuner again",
                values=b'{"values": {"width": NaN}}',
            ),
        ],
    )
    def test_hyperparameters(self, tmp_path, content, fails):
        execution = Execution.of_trainer(tmp_path)
        folder = tmp_path / "tuned"
        folder.mkdir()
        if content is not None:
            (folder / "best_hyperparameters.txt").write_bytes(content)
        artifact = tfx.types.standard_artifacts.HyperParameters()
        artifact.uri = str(folder)
        execution.inputs["hyperparameters"] = [artifact]
        fails(execution)

    @pytest.mark.parametrize(
        ("saved_model", "index"),
        [
            case(
                "data",
                "a `base_model` without a SavedModel",
                "base_model has no SavedModel in",
                "give the output of a trainer that exported one, or leave base_model out",
                values=(None, None),
            ),
            case(
                "data",
                "a `base_model` without variables",
                "base_model has no variables:",
                "variables.index does not exist; give the output of a trainer",
                values=(b"garbage", None),
            ),
            case(
                "data",
                "a `base_model` with damaged variables",
                "base_model: the variables",
                "can't be read (",
                "give the output of a trainer that exported one",
                values=(b"", b"xx"),
            ),
        ],
    )
    def test_a_base_model(self, tmp_path, saved_model, index, fails):
        execution = Execution.of_trainer(tmp_path)
        folder = tmp_path / "base" / "Format-Serving"
        (folder / "variables").mkdir(parents=True)
        if saved_model is not None:
            (folder / "saved_model.pb").write_bytes(saved_model)
        if index is not None:
            (folder / "variables" / "variables.index").write_bytes(index)
        execution.add_model(str(tmp_path / "base"))
        fails(execution)


class TestModules:
    @pytest.mark.parametrize(
        "text",
        [
            case(
                "modules",
                "a module without model_fn",
                "module 'written_model' has no model_fn; define model_fn(features, labels, mode, params)",
                "its functions are: make_model",
                values="def make_model(): pass\n",
            ),
            case(
                "modules",
                "a model_fn with an argument that gets no value",
                "model_fn of module 'written_model' has an argument 'x', which gets no value",
                "it takes (x, y, params); allowed are features, labels, mode, params, config",
                values="def model_fn(x, y, params): pass\n",
            ),
            case(
                "modules",
                "a serving_input_receiver_fn that fails",
                "serving_input_receiver_fn fails, so the model couldn't be exported after training: "
                "KeyError: 'fare'",
                values=f"from {small_model.__name__} import model_fn\n"
                "def serving_input_receiver_fn(): raise KeyError('fare')\n",
            ),
            case(
                "modules",
                "a serving_input_receiver_fn that returns nothing",
                "serving_input_receiver_fn returned None; let it return a ServingInputReceiver",
                values=f"from {small_model.__name__} import model_fn\n"
                "def serving_input_receiver_fn(): pass\n",
            ),
            case(
                "modules",
                "a model_fn that returns no loss in mode EVAL",
                "Missing loss",
                values=f"from {small_model.__name__} import model_fn as small, params\n"
                "from tfx_tpu_trainer.estimator import tpu\n"
                "def model_fn(features, labels, mode, params):\n"
                "    if mode == 'eval': return tpu.TPUEstimatorSpec(mode=mode)\n"
                "    return small(features, labels, mode, params)\n",
            ),
        ],
    )
    def test_a_module_that_cannot_be_used(self, tmp_path, text, fails):
        fails(_with_module(tmp_path, text))


class TestParameters:
    @row(
        "component",
        "`use_tpu=1`, `num_shards=7` of an execution",
        "train_batch_size=64 is not divisible by num_shards=7: ",
        "use 63 or 70",
    )
    def test_a_batch_size_that_does_not_divide(self, tmp_path, fails):
        fails(Execution.of_trainer(tmp_path, use_tpu=1, num_shards=7))

    @row("component", "`train_args.num_steps=0` of an execution", "train_args.num_steps=0")
    def test_no_steps(self, tmp_path, fails):
        fails(Execution.of_trainer(tmp_path, steps=0))

    @row(
        "disks",
        "a model folder that is below a file",
        "the output folder",
        "file/model can't be written to: ",
        "check its permissions and the free space",
    )
    def test_a_model_folder_that_cannot_be_written(self, tmp_path, fails):
        execution = Execution.of_trainer(tmp_path)
        blocked = tmp_path / "file"
        blocked.write_text("")
        execution.model.uri = str(blocked / "model")
        fails(execution)

    @row(
        "disks",
        "a `checkpoint_root` below a file",
        "the checkpoint folder (setting checkpoint_root)",
        "file/checkpoints/",
        "can't be written to: ",
    )
    def test_a_checkpoint_root_that_cannot_be_written(self, tmp_path, fails):
        blocked = tmp_path / "file"
        blocked.write_text("")
        fails(Execution.of_trainer(tmp_path, checkpoint_root=str(blocked / "checkpoints")))


@pytest.mark.parametrize(
    "settings",
    [
        case(
            "tf_config",
            "`eval_every_steps=5` in a cluster",
            "eval_every_steps=5: the chief of a cluster",
            "'evaluator' task",
            values={"eval_every_steps": 5},
        ),
        case(
            "tf_config",
            "`eval_every_secs=9` in a cluster",
            "eval_every_secs=9: the chief of a cluster",
            "'evaluator' task",
            values={"eval_every_secs": 9},
        ),
        case(
            "tf_config",
            "`use_tpu=True` in a cluster",
            "use_tpu=True can't be combined with a cluster (TF_CONFIG), whose parameter servers",
            "or set use_tpu=False",
            values={"use_tpu": 1, "master": "emulated"},
        ),
    ],
)
def test_what_a_cluster_cannot_do(tmp_path, monkeypatch, settings, refused):
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    execution = Execution.of_trainer(tmp_path, **settings)
    with refused(ValueError):
        execution.run()
    # The other hosts are notified.
    status = json.loads((tmp_path / "model_run" / "chief_status.json").read_text())
    assert status["state"] == "failed" and "ValueError: " in status["message"]

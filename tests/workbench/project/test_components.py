"""Tests the components made from a config: Transform with its module, TpuTrainer with every parameter."""

import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tfx import v1 as tfx

from tfx_tpu_trainer.components import TpuTrainer
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.workbench.project import components
from tfx_tpu_trainer.workbench.project.components import preprocessing
from tfx_tpu_trainer.workbench.project.config import ProjectConfig, TrainerSettings
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline

MODULE = "rides_of_ours.preprocessing"
CODE = "def preprocessing_fn(inputs):\n    return inputs\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the module."""
    package = tmp_path / "rides_of_ours"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "preprocessing.py").write_text(CODE)
    (package / "words.py").write_text("WORDS = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    # An earlier test's is another one.
    sys.modules.pop(package.name, None)
    return package


def arguments(**values: Any) -> dict[str, Any]:
    taxi = find_pipeline("taxi")
    return preprocessing(load_config(taxi.config_class(), taxi.config_file, values=values), MODULE)


def test_the_module_is_named_by_its_import_path(folder: Path) -> None:
    assert arguments()["preprocessing_fn"] == f"{MODULE}.preprocessing_fn"
    assert arguments() == arguments()


@pytest.mark.parametrize("name", ["preprocessing.py", "words.py"])
def test_an_edit_is_another_argument_so_that_the_cache_is_not_asked(
    folder: Path, name: str
) -> None:
    before = arguments()
    (folder / name).write_text("WORDS = 4\n")
    assert arguments() != before


def test_code_that_has_moved_to_another_file_is_another_argument(folder: Path) -> None:
    before = arguments()
    (folder / "words.py").rename(folder / "numbers.py")
    assert arguments() != before


def test_a_model_outside_of_the_folder_may_be_edited(folder: Path) -> None:
    before = arguments()
    (folder.parent / "model.py").write_text("LAYERS = 2\n")
    assert arguments() == before


def test_a_file_is_left_to_tfx(folder: Path) -> None:
    assert arguments(user_code="file") == {"module_file": str(folder / "preprocessing.py")}


@pytest.mark.parametrize("user_code", ["import", "file"])
def test_a_module_that_is_not_there_is_told_when_the_pipeline_is_made(
    folder: Path, user_code: str
) -> None:
    (folder / "preprocessing.py").unlink()
    with pytest.raises(ValueError, match=r"'rides_of_ours.preprocessing' can't be found"):
        arguments(user_code=user_code)


SHORTEST = {"module": "pipelines.taxi.model", "label_key": "big_tip", "train_steps": 10}
# Values that are not the defaults, for all settings that can be combined.
VALUES = {
    "label_key": "tip",
    "cache_input": False,
    "params": {"units": [8]},
    "train_batch_size": 32,
    "eval_batch_size": 16,
    "predict_batch_size": 8,
    "iterations_per_loop": 5,
    "tf_random_seed": 3,
    "tpu": "v5e:2x4",
    "use_tpu": True,
    "master": "emulated",
    "num_shards": 8,
    "num_cores_per_replica": 1,
    "start_timeout_secs": 60,
    "save_checkpoints_steps": 7,
    "keep_checkpoint_max": 2,
    "save_summary_steps": 9,
    "log_step_count_steps": 11,
    "gradient_norms": True,
    "histograms": True,
    "profile_steps": [3, 4],
    "slicing_specs": [{"feature_keys": ["hour"]}, {"feature_values": {"day": "2"}}],
    "max_slices": 12,
    "eval_every_steps": 13,
    "best_metric": "auc",
    "best_metric_mode": "min",
    "early_stopping_patience": 3,
    "export_to_cpu": False,
    "export_to_tpu": True,
    "export_saved_model_api_version": 2,
    "preflight": "warn",
    "serving_check": "warn",
    "serving_check_timeout": 14,
    "serving_model_name": "taxi",
    "warmup_batch_sizes": [1, 2],
    "resume": False,
    "checkpoint_root": "/checkpoints",
    "save_input_position": True,
    "stall_timeout_secs": 15,
    "mlflow_tracking_uri": "sqlite:///mlflow.db",
    "mlflow_experiment": "rides",
}


def components_of(
    *,
    model: Mapping[str, object] = MappingProxyType({"units": [4], "rate": 0.5}),
    gate: Mapping[str, object] = MappingProxyType({}),
    **trainer: object,
) -> list[Any]:
    """Trainer, baseline, gate and pusher that a config declares."""
    values = {
        "name": "mine",
        "root": "/runs",
        "trainer": {**SHORTEST, **trainer},
        "gate": dict(gate),
    }
    config = ProjectConfig.model_validate(values)
    # As the process that runs the pipeline is given it.
    config = ProjectConfig.model_validate_json(config.model_dump_json())
    artifacts = tfx.types.standard_artifacts
    return components.train_gate_push(
        config,
        examples=tfx.dsl.Channel(type=artifacts.Examples),
        transform_graph=tfx.dsl.Channel(type=artifacts.TransformGraph),
        schema=tfx.dsl.Channel(type=artifacts.Schema),
        params=model,
    )


def trainer_of(**given: Any) -> TpuTrainer:
    """The trainer that a config declares."""
    return components_of(**given)[0]


@pytest.mark.parametrize("required", [True, False])
def test_a_gate_may_require_alike_answers(required: bool) -> None:
    gate = components_of(gate={"require_alike_answers": required}, export_to_tpu=True)[2]
    assert gate.exec_properties["require_alike_answers"] == (1 if required else None)


def test_every_parameter_of_the_component_is_a_setting() -> None:
    artifacts = set(TpuTrainer.SPEC_CLASS.INPUTS)
    steps = {"train_args", "eval_args"}
    assert set(inspect.signature(TpuTrainer).parameters) - artifacts - steps <= set(
        TrainerSettings.model_fields
    )
    assert set(VALUES) | {"eval_every_secs"} == set(TrainSettings.model_fields)


def test_each_setting_reaches_the_component() -> None:
    found = trainer_of(**VALUES).exec_properties
    direct = TrainSettings.parse({**VALUES, "params": {"units": [8], "rate": 0.5}})
    for name, value in direct.to_exec_properties().items():
        assert found[name] == value, name


def test_a_setting_that_is_not_given_has_the_components_default() -> None:
    found = trainer_of().exec_properties
    direct = TrainSettings.parse(
        {
            "label_key": "big_tip",
            "params": {"units": [4], "rate": 0.5},
            "checkpoint_root": "/runs/checkpoints/mine",
            # One graph, which needs no tags.
            "export_to_tpu": False,
        }
    )
    for name, value in direct.to_exec_properties().items():
        assert found.get(name) == value or (found.get(name) is None and not value), name


def test_steps_and_splits_reach_the_component() -> None:
    found = trainer_of(train_splits=["a", "b"], eval_steps=4, eval_splits=["c"]).exec_properties
    assert json.loads(found["train_args"]) == {"num_steps": 10, "splits": ["a", "b"]}
    assert json.loads(found["eval_args"]) == {"num_steps": 4, "splits": ["c"]}


@pytest.mark.parametrize(
    ("given", "exported"),
    [
        ({}, 0),
        ({"tpu": "v5e:2x4"}, None),
        ({"use_tpu": True, "master": "emulated", "num_shards": 2}, None),
        ({"export_to_tpu": True}, 1),
        ({"export_to_cpu": False}, None),
        ({"module": None, "trainer_fn": "a.b", "label_key": None}, None),
    ],
)
def test_a_project_exports_for_tpus_where_it_trains_on_one(given, exported) -> None:
    settings = TrainerSettings.model_validate({**SHORTEST, **given})
    # None is for the component to decide: a graph for TPU hosts too.
    assert settings.parameters().get("export_to_tpu") == exported


@pytest.mark.parametrize("use_tpu", [False, None])
def test_a_host_training_says_so(use_tpu: bool | None) -> None:
    assert trainer_of(use_tpu=use_tpu).exec_properties["use_tpu"] == 0


def test_values_for_a_module_with_a_trainer_fn_reach_the_component() -> None:
    found = trainer_of(
        model={},
        module=None,
        trainer_fn="tests.components.trainer.legacy.small.trainer_fn",
        label_key=None,
        custom_config={"units": 3},
        restore_tf_estimator=False,
    )
    assert found.exec_properties["custom_config"] == '{"units": 3}'

"""TrainJob: TFX's dictionaries as typed values."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tfx.v1.components import FnArgs

from tests import tfx_testdata
from tests.component.execution import Execution
from tfx_tpu_trainer.component import TpuTrainerExecutor
from tfx_tpu_trainer.component.module_source import ModuleSource
from tfx_tpu_trainer.component.train_job import TrainJob


def _job(execution):
    return TrainJob.from_execution(
        execution.inputs,
        execution.outputs,
        execution.properties,
        read_fn_args=TpuTrainerExecutor()._GetFnArgs,
    )


def test_a_trainers_execution(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, steps=7, use_tpu=0, params='{"width": 3}', eval_args='{"num_steps": 4}'
    )
    job = _job(execution)
    assert (job.train_steps, job.eval_steps) == (7, 4)
    assert (job.train_splits, job.eval_splits) == (("train",), ("eval",))
    assert job.settings.label_key == tfx_testdata.LABEL
    assert job.settings.params == {"width": 3} and job.settings.use_tpu is False
    assert job.source == ModuleSource(module=execution.properties["module"])
    assert job.transform_graph_path == tfx_testdata.TRANSFORM_GRAPH
    assert job.serving_model_dir == execution.serving_dir
    assert job.evaluation is execution.outputs["evaluation"][0]
    assert isinstance(job.fn_args, FnArgs)
    assert job.base_model is None and job.hyperparameters == {}


def test_where_it_belongs(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    job = _job(execution)
    assert (job.node, job.pipeline, job.orchestrated_by_tfx) == ("Trainer", "", False)
    assert job.restore_tf_estimator is True
    execution.properties |= {"node": "Train", "restore_tf_estimator": 0}
    job = _job(execution)
    assert job.node == "Train" and job.restore_tf_estimator is False


def test_a_job_cannot_be_changed(tmp_path):
    job = _job(Execution.of_trainer(tmp_path))
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.train_steps = 1


def test_a_stock_trainers_execution(tmp_path):
    execution = Execution.of_stock_trainer(
        tmp_path,
        settings={"label_key": "tips_xf", "use_tpu": False, "params": {"width": 3}},
        run_fn="tests.component.small_model.run_fn",
    )
    job = _job(execution)
    assert job.settings.label_key == "tips_xf" and job.settings.params == {"width": 3}
    assert job.source == ModuleSource(module="tests.component.small_model")
    assert job.evaluation is None


def test_a_stock_trainers_unknown_setting(tmp_path):
    execution = Execution.of_stock_trainer(
        tmp_path, settings={"labelkey": "tips_xf"}, run_fn="tests.component.small_model.run_fn"
    )
    message = (
        r"custom_config\['tpu_trainer'\]: unknown setting 'labelkey'; did you mean 'label_key'"
    )
    with pytest.raises(ValueError, match=message):
        _job(execution)


def test_splits_are_those_of_the_args(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, train_args=json.dumps({"num_steps": 1, "splits": ["train", "eval"]})
    )
    assert _job(execution).train_splits == ("train", "eval")
    assert len(_job(execution).train_files) == 2


def test_hyperparameters_of_a_tuner_are_its_values(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.add_hyperparameters({"space": [{"class_name": "Float"}], "values": {"width": 9}})
    assert _job(execution).hyperparameters == {"width": 9}


def test_plain_hyperparameters(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.add_hyperparameters({"width": 9})
    assert _job(execution).hyperparameters == {"width": 9}


def test_no_steps(tmp_path):
    with pytest.raises(ValueError, match=r"train_args\.num_steps=0: .*TrainArgs\(num_steps="):
        _job(Execution.of_trainer(tmp_path, steps=0))


@pytest.mark.parametrize("steps", [-3, -(2**31)])
def test_steps_below_0(tmp_path, steps):
    with pytest.raises(ValueError, match=rf"train_args\.num_steps={steps}: "):
        _job(Execution.of_trainer(tmp_path, steps=steps))
    execution = Execution.of_trainer(tmp_path / "eval", eval_args=json.dumps({"num_steps": steps}))
    with pytest.raises(ValueError, match=rf"eval_args\.num_steps={steps}: give the number of bat"):
        _job(execution)


def test_no_transform_graph(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    del execution.inputs["transform_graph"]
    with pytest.raises(ValueError, match="transform_graph is missing; give transform_graph="):
        _job(execution)

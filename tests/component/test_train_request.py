"""TrainRequest: TFX's dictionaries as typed values."""

from __future__ import annotations

import json

import pytest
from tfx.v1.components import FnArgs

from tests import tfx_testdata
from tests.component.execution import Execution
from tfx_tpu_trainer.component import TpuTrainerExecutor
from tfx_tpu_trainer.component.module_source import ModuleSource
from tfx_tpu_trainer.component.train_request import TrainRequest


def _request(execution):
    fn_args = TpuTrainerExecutor()._GetFnArgs(
        execution.inputs, execution.outputs, execution.properties
    )
    return TrainRequest.from_execution(
        outputs=execution.outputs, exec_properties=execution.properties, fn_args=fn_args
    )


def test_a_trainers_execution(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, steps=7, use_tpu=0, params='{"width": 3}', eval_args='{"num_steps": 4}'
    )
    request = _request(execution)
    assert (request.train_steps, request.eval_steps) == (7, 4)
    assert (request.train_splits, request.eval_splits) == (("train",), ("eval",))
    assert request.settings.label_key == tfx_testdata.LABEL
    assert request.settings.params == {"width": 3} and request.settings.use_tpu is False
    assert request.source == ModuleSource(module=execution.properties["module"])
    assert request.transform_graph_path == tfx_testdata.TRANSFORM_GRAPH
    assert request.serving_model_dir == execution.serving_dir
    assert request.evaluation is execution.outputs["evaluation"][0]
    assert isinstance(request.fn_args, FnArgs)
    assert request.base_model is None and request.hyperparameters == {}


def test_a_stock_trainers_execution(tmp_path):
    execution = Execution.of_stock_trainer(
        tmp_path,
        settings={"label_key": "tips_xf", "use_tpu": False, "params": {"width": 3}},
        run_fn="tests.component.small_model.run_fn",
    )
    request = _request(execution)
    assert request.settings.label_key == "tips_xf" and request.settings.params == {"width": 3}
    assert request.source == ModuleSource(module="tests.component.small_model")
    assert request.evaluation is None


def test_a_stock_trainers_unknown_setting(tmp_path):
    execution = Execution.of_stock_trainer(
        tmp_path, settings={"labelkey": "tips_xf"}, run_fn="tests.component.small_model.run_fn"
    )
    message = (
        r"custom_config\['tpu_trainer'\]: unknown setting 'labelkey'; did you mean 'label_key'"
    )
    with pytest.raises(ValueError, match=message):
        _request(execution)


def test_splits_are_those_of_the_args(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, train_args=json.dumps({"num_steps": 1, "splits": ["train", "eval"]})
    )
    assert _request(execution).train_splits == ("train", "eval")
    assert len(_request(execution).fn_args.train_files) == 2


def test_hyperparameters_of_a_tuner_are_its_values(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.add_hyperparameters({"space": [{"class_name": "Float"}], "values": {"width": 9}})
    assert _request(execution).hyperparameters == {"width": 9}


def test_plain_hyperparameters(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    execution.add_hyperparameters({"width": 9})
    assert _request(execution).hyperparameters == {"width": 9}


def test_no_steps(tmp_path):
    with pytest.raises(ValueError, match=r"train_args\.num_steps=0: .*TrainArgs\(num_steps="):
        _request(Execution.of_trainer(tmp_path, steps=0))


def test_no_transform_graph(tmp_path):
    execution = Execution.of_trainer(tmp_path)
    del execution.inputs["transform_graph"]
    with pytest.raises(ValueError, match="transform_graph is missing; give transform_graph="):
        _request(execution)

"""Tests TrainJob: TFX's dictionaries as typed values."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tfx.v1.components import FnArgs

from tests import tfx_testdata
from tests.bad_input import case, row
from tests.components.trainer.execution import Execution
from tfx_tpu_trainer.components import TpuTrainerExecutor
from tfx_tpu_trainer.components.trainer.module_source import ModuleSource
from tfx_tpu_trainer.components.trainer.train_job import TrainJob


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
        run_fn="tests.components.trainer.small_model.run_fn",
    )
    job = _job(execution)
    assert job.settings.label_key == "tips_xf" and job.settings.params == {"width": 3}
    assert job.source == ModuleSource(module="tests.components.trainer.small_model")
    assert job.evaluation is None


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


def refusal(properties, *says):
    """A row of docs/bad-input.md for what a runtime parameter may bring."""
    given = ", ".join(f"`{name}={value!r}`" for name, value in properties.items())
    return case("component", f"{given} of an execution", *says, values=properties)


@pytest.mark.parametrize(
    "properties",
    [
        refusal(
            {"train_args": '{"num_steps": 0}'}, "train_args.num_steps=0: ", "TrainArgs(num_steps="
        ),
        refusal(
            {"train_args": '{"num_steps": -3}'}, "train_args.num_steps=-3: ", "must be set; give"
        ),
        refusal(
            {"eval_args": '{"num_steps": -3}'}, "eval_args.num_steps=-3: give the number of batch"
        ),
        refusal(
            {"train_args": "{"}, "train_args='{' is not valid (", 'JSON such as {"num_steps": 1000}'
        ),
        refusal(
            {"train_args": '{"steps": 3}'}, "unknown 'steps'; did you mean 'num_steps'", "give JSON"
        ),
        refusal({"train_args": '{"num_steps": "x"}'}, "train_args=", "'x'", "give JSON such as"),
        refusal(
            {"train_args": '{"num_steps": 99999999999}'},
            "Value out of range: 99999999999",
            "give JSON",
        ),
        refusal(
            {"eval_args": "[]"},
            "eval_args='[]' is not valid (it is not an object); give JSON such as",
        ),
        refusal({"custom_config": "{"}, "custom_config='{' is not valid (", "give a JSON object"),
        refusal({"custom_config": "[1]"}, "custom_config='[1]' is not valid; give a JSON object"),
        refusal(
            {"train_batch_size": 0}, "train_batch_size=0 is not valid; give an integer above 0"
        ),
    ],
)
def test_properties_that_do_not_fit(tmp_path, properties, refused):
    execution = Execution.of_trainer(tmp_path)
    execution.properties |= properties
    with refused(ValueError):
        _job(execution)


@row(
    "component",
    "an execution property of a newer tfx_tpu_trainer",
    "Ignored the unknown execution properties a_new_one: install in the image the version",
)
def test_properties_that_nobody_knows_are_named(tmp_path, caplog, refused):
    execution = Execution.of_trainer(tmp_path)
    _job(execution)
    assert "unknown execution" not in caplog.text
    execution.properties["a_new_one"] = 1
    _job(execution)
    refused.log(caplog.text)

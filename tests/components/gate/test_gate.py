"""Tests EvalMetricsGate: its constructor, its executor on real files, and four runs of a real pipeline."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import types

import ml_metadata as mlmd
import pytest
import tensorflow_model_analysis as tfma
from google.protobuf import json_format
from tfx import v1 as tfx
from tfx.components.evaluator import executor as evaluator_executor

from tests.bad_input import case, row
from tests.components.evaluation import thresholds as t
from tests.components.trainer.gate_producers import produce_model
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    SliceMetrics,
    metric_properties,
    set_properties,
    write_eval_metrics,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.gate.gate import EvalMetricsGate, EvalMetricsGateExecutor
from tfx_tpu_trainer.serving import ALIKE, Check, ServingCheck, write_serving_check

_artifacts = tfx.types.standard_artifacts
_CONFIG = t.config(accuracy=t.change(-0.01, value_lower=0.7))


class TestConstructor:
    @pytest.fixture
    def channels(self):
        return {
            "model": tfx.dsl.Channel(type=_artifacts.Model),
            "evaluation": tfx.dsl.Channel(type=_artifacts.ModelEvaluation),
        }

    def test_outputs(self, channels):
        baseline = tfx.dsl.Channel(type=_artifacts.Model)
        gate = EvalMetricsGate(**channels, eval_config=_CONFIG, baseline_model=baseline)
        assert {key: channel.type for key, channel in gate.outputs.items()} == {
            "evaluation": _artifacts.ModelEvaluation,
            "blessing": _artifacts.ModelBlessing,
        }
        assert set(gate.inputs) == {"model", "candidate_evaluation", "baseline_model"}
        assert json_format.Parse(gate.exec_properties["eval_config"], tfma.EvalConfig()) == _CONFIG

    def test_baseline_is_optional(self, channels):
        gate = EvalMetricsGate(**channels, eval_config=_CONFIG)
        assert set(gate.inputs) == {"model", "candidate_evaluation"}
        assert gate.exec_properties["require_alike_answers"] is None
        gate = EvalMetricsGate(**channels, eval_config=_CONFIG, require_alike_answers=True)
        assert gate.exec_properties["require_alike_answers"] == 1

    def test_arguments_are_by_keyword(self, channels):
        with pytest.raises(TypeError, match="positional"):
            EvalMetricsGate(*channels.values(), _CONFIG)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            case(
                "component",
                "EvalMetricsGate without `model`",
                "EvalMetricsGate: model is None; give trainer.outputs['model']",
                values=({"model": None}, ValueError),
            ),
            case(
                "component",
                "EvalMetricsGate without `evaluation`",
                "EvalMetricsGate: evaluation is None; give trainer.outputs['evaluation']",
                values=({"evaluation": None}, ValueError),
            ),
            case(
                "component",
                "EvalMetricsGate with the evaluation as `model`",
                "EvalMetricsGate: model is a channel of ModelEvaluation and must be a channel of Model",
                "give trainer.outputs['model']",
                values=({"model": tfx.dsl.Channel(type=_artifacts.ModelEvaluation)}, TypeError),
            ),
            case(
                "component",
                "EvalMetricsGate with a path as `baseline_model`",
                "baseline_model is 'models/1' and must be a channel of Model; give the `model` output of",
                values=({"baseline_model": "models/1"}, TypeError),
            ),
            case(
                "component",
                "a threshold without a bound",
                "value_threshold on 'accuracy' has no bound",
                values=({"eval_config": t.config(accuracy=t.value())}, ValueError),
            ),
            case(
                "component",
                "thresholds as a dict",
                "eval_config must be a tfma.EvalConfig, got dict: build one with tfma.EvalConfig(",
                values=({"eval_config": {"accuracy": 0.7}}, TypeError),
            ),
            case(
                "component",
                "EvalMetricsGate without `eval_config`",
                "eval_config must be a tfma.EvalConfig, got NoneType: build one with tfma.EvalConfig(",
                values=({"eval_config": None}, TypeError),
            ),
        ],
    )
    def test_arguments_of_another_kind_are_refused(self, channels, arguments, error, refused):
        with refused(error):
            EvalMetricsGate(**{**channels, "eval_config": _CONFIG, **arguments})


@pytest.fixture
def run(tmp_path):
    """Runs the executor on artifacts in folders as the launcher makes them."""

    def artifact(artifact_class, name, artifact_id):
        made = artifact_class()
        made.uri, made.id = str(tmp_path / name), artifact_id
        os.makedirs(made.uri, exist_ok=True)
        return made

    def run(
        config,
        overall,
        *,
        baseline=None,
        own_metrics=True,
        evaluated=True,
        old_baseline=False,
        slices=(),
        baseline_slices=(),
        damaged=None,
        properties=(),
        checks=None,
        **exec_properties,
    ):
        model = artifact(_artifacts.Model, "model/2", 12)
        for name, value in dict(properties).items():
            model.set_string_custom_property(name, value)
        trainer_evaluation = artifact(_artifacts.ModelEvaluation, "evaluation/2", 13)
        metrics = EvalMetrics(overall=overall, global_step=20, num_examples=64, slices=slices)
        if own_metrics:
            write_eval_metrics(model.uri, metrics)
        if checks is not None:
            write_serving_check(model.uri, ServingCheck(checks))
        if evaluated:
            write_model_evaluation(trainer_evaluation.uri, metrics)
            set_properties(trainer_evaluation, metric_properties(metrics))
        inputs = {"model": [model], "candidate_evaluation": [trainer_evaluation]}
        if baseline or old_baseline:
            baseline_model = artifact(_artifacts.Model, "model/1", 11)
            inputs["baseline_model"] = [baseline_model]
            if baseline:
                of_baseline = EvalMetrics(baseline, global_step=10, slices=baseline_slices)
                write_eval_metrics(baseline_model.uri, of_baseline)
        if damaged:
            (tmp_path / damaged / "eval_metrics.json").write_text("{")
        outputs = types.SimpleNamespace(
            evaluation=artifact(_artifacts.ModelEvaluation, "gate/evaluation/3", 0),
            blessing=artifact(_artifacts.ModelBlessing, "gate/blessing/3", 0),
        )
        EvalMetricsGateExecutor().Do(
            inputs,
            {key: [made] for key, made in vars(outputs).items()},
            {"eval_config": json_format.MessageToJson(config), **exec_properties},
        )
        return outputs

    return run


class TestExecutor:
    def test_kubeflow_takes_it_for_an_evaluator(self):
        assert issubclass(EvalMetricsGateExecutor, evaluator_executor.Executor)

    def test_first_model(self, run):
        written = run(_CONFIG, {"accuracy": 0.75, "loss": 0.5})

        assert os.listdir(written.blessing.uri) == ["BLESSED"]
        assert written.blessing.get_int_custom_property("blessed") == 1
        assert written.blessing.get_int_custom_property("current_model_id") == 12
        assert not written.blessing.has_custom_property("baseline_model_id")
        assert written.blessing.get_string_custom_property("verdict") == (
            "blessed (first model: no baseline yet, change of accuracy not checked): "
            "accuracy is 0.75 (>= 0.7)"
        )
        result = tfma.load_validation_result(written.evaluation.uri)
        assert result.validation_ok
        assert result.rubber_stamp

    @pytest.mark.parametrize(
        ("checks", "said"),
        [
            (None, "its serving check lacks it"),
            ((), "its serving check lacks it"),
            ((Check(ALIKE, "failed", "y differs"),), "failed: y differs"),
            ((Check(ALIKE, "not run", "could not run: op X"),), "not run: could not run: op X"),
            ((Check("serve, tpu: loads", "failed", ""), Check(ALIKE, "passed", "4 rows")), None),
        ],
    )
    def test_alike_answers_may_be_required(self, run, checks, said):
        given = {"checks": checks, "require_alike_answers": 1}
        written = run(_CONFIG, {"accuracy": 0.75}, **given)
        verdict = written.blessing.get_string_custom_property("verdict")
        assert written.blessing.get_int_custom_property("blessed") == (said is None)
        if said:
            assert verdict == (
                "not blessed (first model: no baseline yet, change of accuracy not checked): "
                f"serve, tpu: answers as serve does: {said}"
            )

    def test_slices(self, run):
        cash, card = (
            SliceMetrics((("pays", way),), {"accuracy": 0.5}, 9) for way in ("cash", "card")
        )
        spec = tfma.SlicingSpec(feature_keys=["pays"])
        config = t.sliced(accuracy=(spec, t.change(-0.125, value_lower=0.25)))
        overall = {"accuracy": 0.75, "loss": 0.5}
        better = dataclasses.replace(card, metrics={"accuracy": 0.75})
        written = run(
            config, overall, baseline=overall, slices=(cash, card), baseline_slices=(cash, better)
        )
        assert os.listdir(written.blessing.uri) == ["NOT_BLESSED"]
        assert written.blessing.get_string_custom_property("verdict") == (
            "not blessed: accuracy on pays=card is 0.5, the baseline's 0.75, a change of -0.25 "
            "(relative -0.333333), but must be a change >= -0.125"
        )
        (part,) = tfma.load_validation_result(written.evaluation.uri).metric_validations_per_slice
        assert part.slice_key.single_slice_keys[0].bytes_value == b"card"
        stored = tfma.load_eval_result(written.evaluation.uri).get_metrics_for_slice(card.key)
        assert stored["accuracy_diff"] == {"doubleValue": -0.25}

    def test_compared_with_the_baseline(self, run):
        written = run(_CONFIG, {"accuracy": 0.75, "loss": 0.5}, baseline={"accuracy": 0.5})

        assert os.listdir(written.blessing.uri) == ["BLESSED"]
        assert written.blessing.get_int_custom_property("baseline_model_id") == 11
        assert not tfma.load_validation_result(written.evaluation.uri).rubber_stamp
        loaded = tfma.load_eval_result(written.evaluation.uri).get_metrics_for_slice()
        assert loaded["accuracy"]["doubleValue"] == 0.75
        assert loaded["accuracy_diff"]["doubleValue"] == 0.75 - 0.5

    def test_worse_than_the_baseline(self, run, caplog):
        page = {"page": "gs://bucket/trainer/model_run/2/run.html"}
        with caplog.at_level(logging.INFO, logger="absl"):
            written = run(
                _CONFIG, {"accuracy": 0.75}, baseline={"accuracy": 0.875}, properties=page
            )

        # TFX's templates show this logger from INFO up, and others from WARNING.
        told = [
            (each.levelname, each.getMessage().removeprefix("EvalMetricsGate: "))
            for each in caplog.records
            if each.name == "absl" and each.getMessage().startswith("EvalMetricsGate: ")
        ]
        assert told == [
            ("WARNING", written.blessing.get_string_custom_property("verdict")),
            ("INFO", "accuracy 0.75 (baseline 0.875) on 64 rows"),
            ("INFO", f"the page is {page['page']}"),
        ]
        assert os.listdir(written.blessing.uri) == ["NOT_BLESSED"]
        assert written.blessing.get_int_custom_property("blessed") == 0
        assert written.blessing.get_string_custom_property("verdict") == (
            "not blessed: accuracy is 0.75, the baseline's 0.875, a change of -0.125 "
            "(relative -0.142857), but must be a change >= -0.01"
        )

    @row(
        "eval_metrics",
        "a baseline model of another trainer: not blessed",
        "not blessed: ",
        "model/1 has no eval_metrics.json",
    )
    def test_baseline_of_another_trainer(self, run, refused):
        written = run(_CONFIG, {"accuracy": 0.75}, old_baseline=True)
        assert os.listdir(written.blessing.uri) == ["NOT_BLESSED"]
        refused.log(written.blessing.get_string_custom_property("verdict"))

    @row(
        "eval_metrics",
        "a threshold on a metric that metric_fn does not give: not blessed",
        "not blessed: auc is not among the model's metrics (accuracy, loss)",
    )
    def test_unknown_metric(self, run, refused):
        written = run(t.config(auc=t.value(0.5)), {"accuracy": 0.75, "loss": 0.5})
        refused.log(written.blessing.get_string_custom_property("verdict"))
        assert os.listdir(written.blessing.uri) == ["NOT_BLESSED"]

    def test_no_thresholds(self, run):
        written = run(tfma.EvalConfig(), {"accuracy": 0.75})
        assert os.listdir(written.blessing.uri) == []
        assert not written.blessing.has_custom_property("blessed")
        assert tfma.load_eval_result(written.evaluation.uri).get_metrics_for_slice()

    def test_metrics_are_properties_of_the_evaluation(self, run):
        evaluation = run(_CONFIG, {"accuracy": 0.75, "loss": float("nan")}).evaluation
        assert evaluation.get_float_custom_property("eval_accuracy") == 0.75
        assert evaluation.get_string_custom_property("eval_loss") == "NaN"
        assert evaluation.get_int_custom_property("global_step") == 20
        assert evaluation.get_int_custom_property("num_examples") == 64

    def test_metrics_from_the_evaluation_of_a_model_without_them(self, run):
        written = run(_CONFIG, {"accuracy": 0.75}, own_metrics=False)
        assert os.listdir(written.blessing.uri) == ["BLESSED"]
        assert written.evaluation.get_int_custom_property("global_step") == 20

    @pytest.mark.parametrize(
        "overall",
        [
            case(
                "eval_metrics",
                f"a model whose {name} is {value}: not blessed",
                "not blessed",
                f": {name} is {value}: the model has diverged",
                values={"accuracy": 0.75, "loss": 0.5, name: value},
            )
            for name, value in (
                ("accuracy", math.inf),
                ("loss", math.inf),
                ("loss", math.nan),
                ("margin", -math.inf),
            )
        ],
    )
    def test_a_model_that_has_diverged_is_not_blessed(self, run, overall, refused):
        written = run(_CONFIG, overall)
        assert os.listdir(written.blessing.uri) == ["NOT_BLESSED"]
        refused.log(written.blessing.get_string_custom_property("verdict"))
        assert not tfma.load_validation_result(written.evaluation.uri).validation_ok

    def test_a_metric_that_is_not_defined_is_no_divergence(self, run):
        written = run(_CONFIG, {"accuracy": 0.75, "recall": math.nan})
        assert os.listdir(written.blessing.uri) == ["BLESSED"]

    @pytest.mark.parametrize(("accuracy", "blessed"), [(0.5, 1), (math.inf, 0)])
    def test_of_a_slice_only_metrics_with_thresholds_must_be_finite(self, run, accuracy, blessed):
        cash = SliceMetrics((("pays", "cash"),), {"accuracy": accuracy, "ratio": math.inf}, 9)
        spec = tfma.SlicingSpec(feature_keys=["pays"])
        config = t.sliced(accuracy=(spec, t.value(0.25)))
        written = run(config, {"accuracy": 0.75}, slices=(cash,))
        assert written.blessing.get_int_custom_property("blessed") == blessed

    @pytest.mark.parametrize(
        ("baseline", "reason"),
        [
            ({"accuracy": math.inf, "loss": 0.5}, "accuracy is inf"),
            ({"accuracy": 0.5, "loss": math.nan}, "loss is nan"),
            ({"accuracy": math.nan, "loss": 0.5}, "accuracy is nan"),
        ],
    )
    def test_a_baseline_that_has_diverged_is_ignored(self, run, caplog, baseline, reason):
        written = run(_CONFIG, {"accuracy": 0.75, "loss": 0.5}, baseline=baseline)
        assert os.listdir(written.blessing.uri) == ["BLESSED"]
        assert not written.blessing.has_custom_property("baseline_model_id")
        assert tfma.load_validation_result(written.evaluation.uri).rubber_stamp
        told = [each.getMessage() for each in caplog.records if "ignored the" in each.getMessage()]
        assert len(told) == 1 and told[0].endswith(f"model/1: its {reason}.")

    @row(
        "eval_metrics",
        "a model without eval_metrics.json, and an evaluation without metrics",
        "No metrics were found for the model at",
        "Give EvalMetricsGate the model and evaluation outputs of one TpuTrainer",
    )
    def test_no_metrics_anywhere(self, run, tmp_path, refused):
        with refused(ValueError) as error:
            run(_CONFIG, {"accuracy": 0.75}, own_metrics=False, evaluated=False)
        assert str(tmp_path / "model/2") in str(error.value)
        assert os.listdir(tmp_path / "gate/blessing/3") == []

    @pytest.mark.parametrize(
        "number",
        [
            case(
                "eval_metrics",
                f"a {whose} with a damaged eval_metrics.json",
                f"model/{number}/eval_metrics.json can't be read: it is not valid JSON",
                values=number,
            )
            for whose, number in (("candidate", 2), ("baseline model", 1))
        ],
    )
    def test_damaged_metrics_are_named(self, run, tmp_path, number, refused):
        with refused(ValueError):
            run(_CONFIG, {"accuracy": 0.75}, baseline={"accuracy": 0.5}, damaged=f"model/{number}")
        assert os.listdir(tmp_path / "gate/blessing/3") == []


@pytest.fixture
def run_pipeline(tmp_path):
    """Runs producer -> resolver -> gate -> Pusher, with one MLMD for all runs."""

    def run(accuracy):
        producer = produce_model(accuracy=accuracy)
        resolver = tfx.dsl.Resolver(
            strategy_class=tfx.dsl.experimental.LatestBlessedModelStrategy,
            model=tfx.dsl.Channel(type=_artifacts.Model),
            model_blessing=tfx.dsl.Channel(type=_artifacts.ModelBlessing),
        ).with_id("latest_blessed_model")
        gate = EvalMetricsGate(
            model=producer.outputs["model"],
            evaluation=producer.outputs["evaluation"],
            baseline_model=resolver.outputs["model"],
            eval_config=_CONFIG,
        )
        destination = tfx.proto.PushDestination.Filesystem(base_directory=str(tmp_path / "pushed"))
        pusher = tfx.components.Pusher(
            model=producer.outputs["model"],
            model_blessing=gate.outputs["blessing"],
            push_destination=tfx.proto.PushDestination(filesystem=destination),
        )
        pipeline = tfx.dsl.Pipeline(
            pipeline_name="gate",
            pipeline_root=str(tmp_path / "root"),
            metadata_connection_config=_metadata(tmp_path),
            components=[producer, resolver, gate, pusher],
            enable_cache=False,
        )
        tfx.orchestration.LocalDagRunner().run(pipeline)

    return run


def _metadata(tmp_path):
    return tfx.orchestration.metadata.sqlite_metadata_connection_config(
        str(tmp_path / "metadata.sqlite")
    )


def _newest(tmp_path, type_name):
    store = mlmd.MetadataStore(_metadata(tmp_path))
    return max(store.get_artifacts_by_type(type_name), key=lambda artifact: artifact.id)


@pytest.mark.e2e
def test_four_runs_of_a_pipeline(run_pipeline, tmp_path):
    def verdict():
        return _newest(tmp_path, "ModelBlessing").custom_properties

    def pushed():
        return _newest(tmp_path, "PushedModel").custom_properties["pushed"].int_value

    run_pipeline(0.8)
    first_model = _newest(tmp_path, "Model").id
    assert verdict()["blessed"].int_value == 1
    assert verdict()["current_model_id"].int_value == first_model
    assert verdict()["verdict"].string_value.startswith("blessed (first model")
    assert pushed() == 1

    run_pipeline(0.81)
    second_model = _newest(tmp_path, "Model").id
    assert verdict()["blessed"].int_value == 1
    assert verdict()["current_model_id"].int_value == second_model
    assert verdict()["baseline_model_id"].int_value == first_model
    assert "accuracy is 0.81, the baseline's 0.8" in verdict()["verdict"].string_value
    assert pushed() == 1

    run_pipeline(0.75)
    assert verdict()["blessed"].int_value == 0
    assert verdict()["baseline_model_id"].int_value == second_model
    change = 0.75 - 0.81
    assert f"a change of {change:.6g}" in verdict()["verdict"].string_value
    assert pushed() == 0
    evaluation = _newest(tmp_path, "ModelEvaluation")
    assert evaluation.custom_properties["eval_accuracy"].double_value == 0.75
    loaded = tfma.load_eval_result(evaluation.uri).get_metrics_for_slice()
    assert loaded["accuracy_diff"]["doubleValue"] == change

    # The baseline of a fourth run is still the second model, though the third is newer.
    run_pipeline(0.82)
    assert verdict()["baseline_model_id"].int_value == second_model
    assert pushed() == 1

"""Tests slices in a ModelEvaluation and in the verdict."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from tests.bad_input import row
from tests.components.evaluation import thresholds as t
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    SliceMetrics,
    read_eval_metrics,
    read_model_evaluation,
    write_eval_metrics,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.evaluation._data_slices import (
    count_slices,
    most_frequent,
    other_slice,
    parse_slicing_specs,
    slice_in_words,
    slice_name,
    slicing_specs_to_json,
    spec_in_words,
)

_CASH = (("payment", "Cash"),)
_CARD = (("payment", "Card"),)
_CARD_AT_7 = (("hour", 7), ("payment", "Card"))
_PAYMENT = config_pb2.SlicingSpec(feature_keys=["payment"])
_ONLY_CASH = config_pb2.SlicingSpec(feature_values={"payment": "Cash"})
_WHOLE = config_pb2.SlicingSpec()


def _metrics(overall, by_slice):
    slices = tuple(
        SliceMetrics(key, {"accuracy": value}, num_examples=10) for key, value in by_slice.items()
    )
    return EvalMetrics(
        {"accuracy": overall, "loss": 1 - overall}, global_step=3, num_examples=30, slices=slices
    )


_CANDIDATE = _metrics(0.75, {_CASH: 0.5, _CARD: 0.8, _CARD_AT_7: 1 / 3})


@pytest.fixture
def judge(tmp_path):
    def judge(config, candidate=_CANDIDATE, baseline=None, **locations):
        uri = str(tmp_path / "evaluation")
        verdict = write_model_evaluation(
            uri, candidate, eval_config=config, baseline=baseline, **locations
        )
        assert tfma.load_validation_result(uri).validation_ok == bool(verdict.blessed)
        return verdict

    return judge


class TestFiles:
    def test_tfma_reads_back_every_bit(self, tmp_path):
        uri = str(tmp_path / "evaluation")
        write_model_evaluation(uri, _CANDIDATE, baseline=_metrics(0.5, {_CASH: 0.25}))

        def stored(key, model_name):
            loaded = dict(tfma.load_eval_result(uri, model_name=model_name).slicing_metrics)
            return {name: v["doubleValue"] for name, v in loaded[key][""][""].items()}

        assert stored(_CARD_AT_7, "candidate") == {"accuracy": 1 / 3, "example_count": 10.0}
        assert stored(_CASH, "candidate") == {
            "accuracy": 0.5,
            "accuracy_diff": 0.25,
            "example_count": 10.0,
            "example_count_diff": 0.0,
        }
        assert stored(_CASH, "baseline") == {"accuracy": 0.25, "example_count": 10.0}
        result = tfma.load_eval_result(uri)
        assert result.get_metrics_for_slice(_CARD)["accuracy"] == {"doubleValue": 0.8}
        assert result.get_metrics_for_slice()["example_count"] == {"doubleValue": 30.0}
        assert set(result.get_slice_names()) == {(), _CASH, _CARD, _CARD_AT_7}
        assert tfma.view.render_slicing_metrics(result, slicing_column="payment") is not None
        assert tfma.view.render_slicing_metrics(result, slicing_spec=_PAYMENT) is not None

    def test_read_gives_the_slices(self, tmp_path):
        uri = str(tmp_path / "evaluation")
        write_model_evaluation(uri, _CANDIDATE, baseline=_metrics(0.5, {_CASH: 0.25}))
        slices = read_model_evaluation(uri).slices
        assert sorted(slices, key=str) == sorted(_CANDIDATE.slices, key=str)

    def test_a_model_carries_them(self, tmp_path):
        nan = _metrics(math.nan, {_CASH: math.inf, (("share", 0.1),): -math.inf})
        write_eval_metrics(str(tmp_path), nan)
        assert read_eval_metrics(str(tmp_path)).slices == nan.slices

    def test_the_whole_split_is_no_slice(self):
        with pytest.raises(ValueError, match="A slice needs a key"):
            SliceMetrics((), {"accuracy": 1.0})


class TestVerdict:
    def test_a_threshold_without_slices_holds_for_every_slice(self, judge):
        assert judge(t.config(accuracy=t.value(0.3))).summary() == (
            "blessed: accuracy is 0.75 (>= 0.3); accuracy on 3 slices (>= 0.3)"
        )
        verdict = judge(t.config(accuracy=t.value(0.5)))
        assert verdict.summary() == (
            "not blessed: accuracy on hour=7, payment=Card is 0.333333, but must be >= 0.5"
        )
        assert [failure.slice_key for failure in verdict.failures] == [_CARD_AT_7]

    def test_loss_has_no_slices(self, judge):
        assert judge(t.config(loss=t.value(upper=0.3))).blessed is True

    def test_thresholds_on_some_slices(self, judge):
        assert judge(t.sliced(accuracy=(_PAYMENT, t.value(0.5)))).blessed is True
        verdict = judge(t.sliced(accuracy=(_PAYMENT, t.value(0.6))))
        assert [failure.slice_key for failure in verdict.failures] == [_CASH]
        assert judge(t.sliced(accuracy=(_ONLY_CASH, t.value(upper=0.5)))).summary() == (
            "blessed: accuracy on payment=Cash is 0.5 (<= 0.5)"
        )
        assert judge(t.sliced(accuracy=(_WHOLE, t.value(0.7)))).blessed is True
        assert judge(t.sliced(accuracy=(_WHOLE, t.value(0.8)))).blessed is False

    @pytest.mark.parametrize(
        ("candidate", "blessed"), [(0.5, True), (0.25, False), (math.nan, False)]
    )
    def test_changes_on_slices(self, judge, candidate, blessed):
        config = t.sliced(accuracy=(_ONLY_CASH, t.change(-0.125)))
        verdict = judge(config, _metrics(0.75, {_CASH: candidate}), _metrics(0.5, {_CASH: 0.5}))
        assert verdict.blessed is blessed
        for failure in verdict.failures:
            assert failure.message.startswith("accuracy on payment=Cash is ")
            assert (failure.baseline_value, failure.bound) == (0.5, "change >= -0.125")

    def test_relative_changes_on_slices_in_the_other_direction(self, judge):
        config = t.sliced(accuracy=(_PAYMENT, t.change(relative=0.5, lower_is_better=True)))
        baseline = _metrics(0.5, {_CASH: 0.5, _CARD: 0.25})
        verdict = judge(config, _metrics(0.75, {_CASH: 0.75, _CARD: 0.5}), baseline)
        assert verdict.summary() == (
            "not blessed: accuracy on payment=Card is 0.5, the baseline's 0.25, a change of +0.25 "
            "(relative +1), but must be a relative change <= 0.5"
        )

    def test_a_slice_that_the_baseline_does_not_know(self, judge):
        everywhere = t.config(accuracy=t.change(-0.5))
        baseline = _metrics(0.75, {_CASH: 0.5})
        verdict = judge(everywhere, _CANDIDATE, baseline, baseline_location="/old")
        assert [failure.slice_key for failure in verdict.failures] == [_CARD, _CARD_AT_7]
        assert verdict.failures[0].message == (
            "accuracy on payment=Card is 0.8, but its change >= -0.5 can't be checked: the baseline "
            "model at /old was not measured on this slice"
        )
        # A threshold on what both know is not concerned.
        assert judge(t.sliced(accuracy=(_ONLY_CASH, t.change(0.0))), baseline=baseline).blessed

    def test_a_baseline_without_metrics(self, judge):
        config = t.sliced(accuracy=(_ONLY_CASH, t.change(0.0)))
        verdict = judge(config, baseline_location="/old")
        assert verdict.blessed is False
        assert "on payment=Cash is 0.5, but its change" in verdict.summary()
        assert "/old has no eval_metrics.json" in verdict.summary()

    def test_no_baseline_yet(self, judge):
        config = t.sliced(accuracy=(_ONLY_CASH, t.change(-0.01, value_lower=0.5)))
        verdict = judge(config)
        assert (verdict.blessed, verdict.rubber_stamp) == (True, True)
        assert verdict.unchecked == ("accuracy",)

    def test_a_slice_that_was_not_measured(self, judge):
        spec = config_pb2.SlicingSpec(feature_values={"payment": "Cheque"})
        config = t.sliced(accuracy=(spec, t.value(0.5)))
        verdict = judge(config)
        assert verdict.summary() == (
            "not blessed: accuracy must be >= 0.5 on payment=Cheque, a slice that was not measured: "
            "give it to TpuTrainer's slicing_specs, or check that the eval split has such rows"
        )
        verdict = judge(config, _metrics(0.75, {}))
        assert verdict.summary().endswith("not measured: give slicing_specs to TpuTrainer")

    def test_a_metric_that_metric_fn_does_not_give(self, judge):
        verdict = judge(t.sliced(acuracy=(_ONLY_CASH, t.value(0.5))))
        assert verdict.summary() == (
            "not blessed: acuracy on payment=Cash is not among the model's metrics (accuracy, "
            "example_count): return it from metric_fn, or correct the name in eval_config"
        )

    def test_many_reasons_are_cut_short(self, judge):
        candidate = _metrics(0.5, {(("hour", hour),): 0.5 for hour in range(20)})
        verdict = judge(t.config(accuracy=t.value(0.75)), candidate)
        assert len(verdict.failures) == 21
        assert verdict.summary().endswith("; and 11 more")

    def test_thresholds_written_as_metric_configs(self, judge):
        by_slice = config_pb2.PerSliceMetricThreshold(
            slicing_specs=[_ONLY_CASH], threshold=t.value(0.6)
        )
        metric = config_pb2.MetricConfig(
            class_name="BinaryAccuracy", per_slice_thresholds=[by_slice]
        )
        config = config_pb2.EvalConfig(metrics_specs=[config_pb2.MetricsSpec(metrics=[metric])])
        part = SliceMetrics(_CASH, {"binary_accuracy": 0.5})
        candidate = EvalMetrics({"binary_accuracy": 0.75}, global_step=1, slices=(part,))
        verdict = judge(config, candidate)
        assert [failure.slice_key for failure in verdict.failures] == [_CASH]


_HOUR = config_pb2.SlicingSpec(feature_keys=["hour"])
_CASH_SPEC = config_pb2.SlicingSpec(feature_keys=["hour"], feature_values={"payment": "Cash"})
# (payment, hour) -> rows.
_ROWS = {(("Cash",), (1,)): 5, (("Cash",), (2, 3)): 2, (("Card",), (1,)): 4, ((), (1,)): 1}
_NAMES = ("payment", "hour")


def test_all_forms_are_the_same():
    dicts = [
        {"feature_keys": ["hour"]},
        {"featureKeys": ["hour"], "feature_values": {"payment": "Cash"}},
    ]
    text = (
        '[{"feature_keys":["hour"]},{"feature_keys":["hour"],"feature_values":{"payment":"Cash"}}]'
    )
    assert (
        parse_slicing_specs([_HOUR, _CASH_SPEC])
        == parse_slicing_specs(dicts)
        == (_HOUR, _CASH_SPEC)
    )
    assert parse_slicing_specs(text) == (_HOUR, _CASH_SPEC)
    assert parse_slicing_specs(slicing_specs_to_json([_HOUR, _CASH_SPEC])) == (_HOUR, _CASH_SPEC)


def test_the_whole_split_needs_no_spec_and_no_spec_counts_twice():
    assert parse_slicing_specs([]) == ()
    assert parse_slicing_specs([config_pb2.SlicingSpec(), _HOUR, _HOUR]) == (_HOUR,)
    assert parse_slicing_specs([{"feature_values": {"hour": 3}}]) == (
        config_pb2.SlicingSpec(feature_values={"hour": "3"}),
    )


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ("[", "is not valid JSON"),
        ({"feature_keys": ["hour"]}, "is not a list"),
        (_HOUR, "is not a list"),
        (7, "is not a list"),
        (["hour"], "has 'hour': give a tfma.SlicingSpec"),
        ([{"feature_key": ["hour"]}], "is not a SlicingSpec"),
        ([{"feature_keys": "hour"}], "is not a SlicingSpec"),
        (
            [{"feature_keys": ["a"], "feature_values": {"a": "1"}}],
            r"names \['a'\] in feature_keys and",
        ),
        ([{"feature_values": {"a": ""}}], "give a value"),
        ([config_pb2.SlicingSpec(slice_keys_sql="SELECT 1")], "only the stock Evaluator runs"),
    ],
)
@row("component", "slicing specs of other types and fields", "slicing_specs")
def test_refused(specs, says, refused):
    with refused(ValueError) as raised:
        parse_slicing_specs(specs)
    assert re.search(says, str(raised.value))


def test_rows_are_counted_as_tfma_slices_them():
    assert count_slices(_ROWS, _NAMES, _HOUR) == {
        (("hour", 1),): 10,
        (("hour", 2),): 2,
        (("hour", 3),): 2,
    }
    assert count_slices(_ROWS, _NAMES, config_pb2.SlicingSpec(feature_keys=_NAMES)) == {
        (("hour", 1), ("payment", "Card")): 4,
        (("hour", 1), ("payment", "Cash")): 5,
        (("hour", 2), ("payment", "Cash")): 2,
        (("hour", 3), ("payment", "Cash")): 2,
    }
    assert count_slices(_ROWS, _NAMES, _CASH_SPEC) == {
        (("hour", 1), ("payment", "Cash")): 5,
        (("hour", 2), ("payment", "Cash")): 2,
        (("hour", 3), ("payment", "Cash")): 2,
    }
    assert count_slices(_ROWS, _NAMES, config_pb2.SlicingSpec(feature_values={"hour": "3"})) == {
        (("hour", 3),): 2
    }
    assert count_slices(_ROWS, _NAMES, config_pb2.SlicingSpec(feature_values={"hour": "9"})) == {}


def test_the_most_frequent_stay():
    counts = Counter({(("hour", hour),): count for hour, count in {3: 5, 1: 5, 2: 9, 4: 1}.items()})
    assert most_frequent(counts, 2) == ((("hour", 1),), (("hour", 2),))
    key = (("hour", 1), ("payment", "Cash"))
    assert other_slice(key, _CASH_SPEC) == (("hour", "__OTHER__"), ("payment", "Cash"))


def test_names():
    key = (("hour", 1), ("payment", "Cash"))
    for one in ((), key[:1], key):
        assert slice_name(one) == tfma.slicer.stringify_slice_key(one)
    assert slice_in_words(key) == "hour=1, payment=Cash"
    assert spec_in_words(_CASH_SPEC) == "payment=Cash, each hour"

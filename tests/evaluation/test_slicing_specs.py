from __future__ import annotations

from collections import Counter

import pytest
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from tfx_tpu_trainer.evaluation.slice_keys import slice_in_words, slice_name
from tfx_tpu_trainer.evaluation.slicing_specs import (
    count_slices,
    in_words,
    most_frequent,
    other_slice,
    parse_slicing_specs,
    slicing_specs_to_json,
)

_HOUR = config_pb2.SlicingSpec(feature_keys=["hour"])
_CASH = config_pb2.SlicingSpec(feature_keys=["hour"], feature_values={"payment": "Cash"})
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
    assert parse_slicing_specs([_HOUR, _CASH]) == parse_slicing_specs(dicts) == (_HOUR, _CASH)
    assert parse_slicing_specs(text) == (_HOUR, _CASH)
    assert parse_slicing_specs(slicing_specs_to_json([_HOUR, _CASH])) == (_HOUR, _CASH)


def test_the_whole_split_needs_no_spec_and_no_spec_counts_twice():
    assert parse_slicing_specs([]) == ()
    assert parse_slicing_specs([config_pb2.SlicingSpec(), _HOUR, _HOUR]) == (_HOUR,)
    assert parse_slicing_specs([{"feature_values": {"hour": 3}}]) == (
        config_pb2.SlicingSpec(feature_values={"hour": "3"}),
    )


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ("[", "is no JSON"),
        ({"feature_keys": ["hour"]}, "is no list"),
        (_HOUR, "is no list"),
        (7, "is no list"),
        (["hour"], "has 'hour': give a tfma.SlicingSpec"),
        ([{"feature_key": ["hour"]}], "is no SlicingSpec"),
        ([{"feature_keys": "hour"}], "is no SlicingSpec"),
        (
            [{"feature_keys": ["a"], "feature_values": {"a": "1"}}],
            r"names \['a'\] in feature_keys and",
        ),
        ([{"feature_values": {"a": ""}}], "give a value"),
        ([config_pb2.SlicingSpec(slice_keys_sql="SELECT 1")], "only the stock Evaluator runs"),
    ],
)
def test_refused(specs, says):
    with pytest.raises(ValueError, match=says):
        parse_slicing_specs(specs)


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
    assert count_slices(_ROWS, _NAMES, _CASH) == {
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
    assert other_slice(key, _CASH) == (("hour", "__OTHER__"), ("payment", "Cash"))


def test_names():
    key = (("hour", 1), ("payment", "Cash"))
    for one in ((), key[:1], key):
        assert slice_name(one) == tfma.slicer.stringify_slice_key(one)
    assert slice_in_words(key) == "hour=1, payment=Cash"
    assert in_words(_CASH) == "payment=Cash, each hour"

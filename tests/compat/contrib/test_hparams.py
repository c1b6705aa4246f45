from __future__ import annotations

import json

import pytest

from tfx_tpu_trainer.compat.contrib.training import HParams, parse_values


def _params():
    return HParams(rate=0.1, units=3, name="a", flag=True, sizes=[1, 2, 3])


def test_text_sets_values_of_every_type():
    params = _params().parse("rate=1e-3, units=7,name=relu6,flag=false,sizes=[4 5,6]")
    assert params.values() == {
        "rate": 0.001,
        "units": 7,
        "name": "relu6",
        "flag": False,
        "sizes": [4, 5, 6],
    }


def test_text_sets_elements_of_a_list():
    assert _params().parse("sizes[1]=9,sizes[0]=8").sizes == [8, 9, 3]
    with pytest.raises(ValueError, match="3 elements, so index 3 is out of range"):
        _params().parse("sizes[3]=1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("units=1.5", "Could not parse hparam 'units'"),
        ("other=1", "Unknown hyperparameter type for other"),
        ("units", "Malformed"),
        ("units=1,units=2", "Multiple assignments"),
        ("sizes=[1],sizes[0]=2", "Multiple assignments"),
        ("sizes[0]=1,sizes[0]=2", "Multiple assignments"),
        ("sizes[0]=[1,2]", "can't be assigned to the element"),
        ("sizes=1", "Must pass a list for multi-valued parameter: sizes"),
        ("units=[1]", "Must not pass a list for single-valued parameter: units"),
        ("flag=maybe", "Could not parse hparam 'flag'"),
    ],
)
def test_text_that_does_not_fit_is_an_error_that_names_it(text, message):
    with pytest.raises(ValueError, match=message):
        _params().parse(text)


def test_values_are_cast_to_the_type_that_they_began_with():
    params = _params()
    params.set_hparam("rate", 1)
    assert type(params.rate) is float
    for name, value in (("units", 1.5), ("units", True), ("name", 3), ("rate", "x"), ("flag", 1)):
        with pytest.raises(ValueError, match=f"Could not cast hparam '{name}'"):
            params.set_hparam(name, value)
    with pytest.raises(KeyError):
        params.set_hparam("other", 1)
    params.add_hparam("anything", None)
    params.set_hparam("anything", 3)
    assert params.anything == 3


def test_names_are_added_found_and_removed():
    params = _params()
    assert "units" in params
    assert params.get("units") == 3
    assert params.get("other", 5) == 5
    with pytest.raises(ValueError, match="incompatible"):
        params.get("sizes", 5)
    params.del_hparam("units")
    params.del_hparam("units")
    assert "units" not in params
    with pytest.raises(ValueError, match="reserved: rate"):
        params.add_hparam("rate", 1)
    with pytest.raises(ValueError, match="reserved: parse"):
        params.add_hparam("parse", 1)
    with pytest.raises(ValueError, match="cannot be empty"):
        params.add_hparam("none", [])


def test_json_goes_out_and_in():
    params = _params()
    text = params.to_json(sort_keys=True)
    assert json.loads(text) == params.values()
    assert HParams(**params.values()).parse_json('{"units": 9}').units == 9
    assert params.override_from_dict({"name": "b"}) is params
    assert repr(HParams(b=1, a=2)) == "HParams([('a', 2), ('b', 1)])"
    assert str(HParams(b=1, a=2)) == "b=1,a=2"


def test_unknown_names_can_be_left_out():
    assert parse_values("a=1,b=2,c[1]=x", {"b": int, "c": str}, ignore_unknown=True) == {
        "b": 2,
        "c": {1: "x"},
    }

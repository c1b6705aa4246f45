import json
import math

import pytest

from tests.components.report.runs import run_of
from tfx_tpu_trainer.components.report import read_run_data, write_run_data
from tfx_tpu_trainer.components.report._run_data import (
    Learning,
    Measured,
    MeasuredSlice,
    RunData,
    Series,
    from_json,
    to_json,
)


def _run(*values):
    return RunData(
        title="a <b>",
        written=1.0,
        measured=Measured(
            global_step=3,
            num_examples=None,
            seconds=0.1,
            metrics={"one": values[0]},
            slices=(MeasuredSlice(name="x=1", num_examples=2, metrics={"one": values[0]}),),
        ),
        learning=Learning(
            series=(
                Series(
                    name="loss",
                    source="training",
                    steps=tuple(range(len(values))),
                    values=values,
                    thinned_from=9,
                ),
            )
        ),
    )


def test_numbers_come_back_from_the_file_bit_by_bit(tmp_path):
    run = _run(0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0)
    write_run_data(run, str(tmp_path))
    assert read_run_data(str(tmp_path)) == run
    assert read_run_data(str(tmp_path / "run.json")) == run


def test_what_is_not_finite_stands_in_valid_json():
    text = to_json(_run(math.nan, math.inf, -math.inf))
    assert '"NaN"' in text
    assert '"-Infinity"' in text
    nan, *infinite = from_json(text).learning.series[0].values
    assert math.isnan(nan)
    assert infinite == [math.inf, -math.inf]


def test_a_missing_file_is_none(tmp_path):
    assert read_run_data(str(tmp_path)) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"title": 1}', '{"format": "tfx_tpu_trainer.run/2"}', b"\xff\xfe"]
)
def test_another_file_is_named_with_what_to_do(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"run\.json can't be read: .*tfx-tpu-trainer report") as e:
        read_run_data(str(tmp_path))
    assert "\n" not in str(e.value)


def test_a_run_of_the_version_before_is_read():
    values = json.loads(to_json(run_of()))
    for name in ("data", "preflight", "answers"):
        del values[name]
    del values["lineage"]["code"], values["lineage"]["rows"]
    assert from_json(json.dumps(values)) == run_of()


def test_keys_of_a_later_version_are_left_out():
    text = to_json(_run(0.5)).replace('"title"', '"energy": 3,\n  "title"', 1)
    assert from_json(text) == _run(0.5)

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.components.report.pages import Page
from tests.components.report.runs import run_of
from tfx_tpu_trainer.components.report import compare, render_comparison
from tfx_tpu_trainer.components.report._comparison import less_is_better
from tfx_tpu_trainer.components.report._run_data import (
    Data,
    Feature,
    FeatureOfSplit,
    Lineage,
    MeasuredSlice,
)

_RANDOM = np.random.default_rng(11)
_SHARED = _RANDOM.normal(size=100)


def _run(title, *, digest="same", deviations=None, **metrics):
    run = run_of(title=title)
    of_each = {
        name: tuple((0.01 * _SHARED if deviations is None else deviations).tolist())
        for name in metrics
    }
    measured = dataclasses.replace(
        run.measured, metrics=metrics, deviations=of_each, rows_digest=digest
    )
    return dataclasses.replace(run, measured=measured)


def _margin(deviations):
    return 1.96 * np.std(deviations, ddof=1)


def test_on_the_same_rows_the_chance_that_both_share_is_taken_away():
    of_other = 0.01 * _SHARED + 0.001 * _RANDOM.normal(size=100)
    comparison = compare([_run("a", auc=0.9), _run("b", auc=0.905, deviations=of_other)])
    (difference,) = comparison.differences
    assert difference.value == pytest.approx(0.005)
    assert difference.paired
    assert difference.margin == pytest.approx(_margin(of_other - 0.01 * _SHARED))
    assert difference.says == "better"


def test_on_other_rows_the_chance_of_both_adds_up():
    comparison = compare([_run("a", auc=0.9), _run("b", auc=0.905, digest="other")])
    (difference,) = comparison.differences
    assert not difference.paired
    assert difference.margin == pytest.approx(np.sqrt(2) * _margin(0.01 * _SHARED))
    assert difference.says == "within noise"
    assert "on other rows than the first one" in Page(render_comparison(comparison)).text


@pytest.mark.parametrize(
    ("metric", "value", "says"),
    [
        ("auc", 0.8, "worse"),
        ("auc", 1.0, "better"),
        ("average_loss", 0.8, "better"),
        ("average_loss", 1.0, "worse"),
        ("auc", 0.9001, "within noise"),
        ("auc", float("nan"), "not known"),
    ],
)
def test_a_difference_is_named_by_what_the_metric_wants(metric, value, says):
    runs = [_run("a", **{metric: 0.9}), _run("b", deviations=0.02 * _SHARED, **{metric: value})]
    (difference,) = compare(runs).differences
    assert difference.says == says


@pytest.mark.parametrize("name", ["loss", "average_loss", "rmse", "cross_entropy/mean"])
def test_errors_are_better_where_they_are_smaller(name):
    assert less_is_better(name)
    assert not less_is_better("accuracy")


def test_without_resamplings_nobody_knows():
    runs = [_run("a", auc=0.9), run_of(title="b")]
    runs[1] = dataclasses.replace(
        runs[1], measured=dataclasses.replace(runs[1].measured, metrics={"auc": 0.8})
    )
    (difference,) = compare(runs).differences
    assert (difference.margin, difference.says) == (None, "not known")


def test_settings_versions_and_inputs_that_differ_are_listed():
    lineages = [
        Lineage(
            settings={"a": "1", "b": "2", "params": "{'rate': 0.1, 'deep': {'units': [4]}}"},
            inputs={"examples": "x"},
            versions={"tf": "1"},
        ),
        Lineage(
            settings={
                "a": "1",
                "b": "3",
                "c": "4",
                "params": "{'rate': 0.1, 'deep': {'units': [8]}}",
            },
            inputs={"examples": "y"},
        ),
    ]
    data = [
        Data(
            statistics="s",
            splits={"train": rows},
            features=(
                Feature(
                    name="plan",
                    kind="text",
                    by_split={"train": FeatureOfSplit(missing=0, values=rows, unique=unique)},
                ),
            ),
            all_features=1,
        )
        for rows, unique in ((5000, 3), (7, 2))
    ]
    runs = [
        run_of(title=f"r{number}", lineage=lineage, data=of_run)
        for number, (lineage, of_run) in enumerate(zip(lineages, data, strict=True))
    ]
    comparison = compare(runs)
    assert comparison.settings == {
        "b": ("2", "3"),
        "c": ("", "4"),
        "params.deep.units": ("[4]", "[8]"),
        "version of tf": ("1", ""),
    }
    assert comparison.data == {
        "input examples": ("x", "y"),
        "rows in train": ("5,000", "7"),
        "feature plan": ("3 different, 0 missing", "2 different, 0 missing"),
    }
    page = Page(render_comparison(comparison))
    assert page.row("b") == ["2", "3"]
    assert page.row("c") == ["–", "4"]
    assert "a" not in [row[0] for row in page.rows]


def test_a_metric_that_only_one_run_has_is_a_dash_in_the_other():
    page = Page(render_comparison(compare([_run("a", auc=0.9), _run("b", auc=0.9, rmse=2.0)])))
    assert page.row("rmse") == ["–", "2"]


def _with_code(title, **files):
    source = {name + ".py": text for name, text in files.items()}
    code = f"model@{hash(tuple(files.items())) % 16**8:08x}0"
    return run_of(title=title, lineage=Lineage(source=source, code=code))


def test_code_that_differs_is_a_diff_of_the_source_that_was_kept():
    runs = [
        _with_code("a", model="one\ntwo\n", same="x\n"),
        _with_code("b", model="one\nthree\n", same="x\n", new="y\n"),
    ]
    comparison = compare(runs)
    assert comparison.code["b"].splitlines() == [
        *("--- a/model.py", "+++ b/model.py", "@@ -1,2 +1,2 @@", " one", "-two", "+three"),
        *("--- a/new.py", "+++ b/new.py", "@@ -0,0 +1 @@", "+y"),
    ]
    assert "-two" in Page(render_comparison(comparison)).text
    assert compare([runs[0], runs[0]]).code == {}


def test_code_whose_source_was_not_kept_is_known_by_its_digest():
    old, new = _with_code("a"), _with_code("b", model="x")
    digests = [run.lineage.code[:14] for run in (old, new)]
    assert compare([old, new]).code == {
        "b": f"{digests[0]} became {digests[1]}; the source was not kept with both."
    }


def test_slices_that_got_worse_come_worst_first():
    def sliced(title, **accuracies):
        run = _run(title, accuracy=0.5)
        slices = tuple(
            MeasuredSlice(name=name, num_examples=9, metrics={"accuracy": value})
            for name, value in accuracies.items()
        )
        return dataclasses.replace(run, measured=dataclasses.replace(run.measured, slices=slices))

    comparison = compare(
        [sliced("a", x=0.9, y=0.8, z=0.1, gone=1), sliced("b", x=0.7, y=0.3, z=0.2, new=0)]
    )
    assert [(one.name, one.before, one.after) for one in comparison.worse_slices] == [
        ("y", 0.8, 0.3),
        ("x", 0.9, 0.7),
    ]
    assert Page(render_comparison(comparison)).row("y") == ["accuracy", "9", "0.8", "0.3"]


def test_curves_of_all_runs_lie_over_each_other():
    runs = [run_of(title=title) for title in ("first", "second", "third")]
    text = render_comparison(compare(runs))
    page = Page(text)
    assert "2 curves in common." in page.text
    assert "loss, training by step: first from 0.75 at step 1 to 0.25 at step 3; second" in text
    assert ["step", "first", "second", "third"] in page.rows
    assert ["3", "0.25", "0.25", "0.25"] in page.rows
    assert not page.unclosed


def test_runs_of_one_title_are_numbered():
    comparison = compare([_run("a", auc=0.9), _run("a", auc=0.8)])
    assert [run.title for run in comparison.runs] == ["a (1)", "a (2)"]
    assert "a (2) is worse by auc (-0.1)" in Page(render_comparison(comparison)).text


def test_names_with_markup_stay_text():
    page = Page(render_comparison(compare([_run("<b>a", auc=1.0), _run("<script>", auc=0.5)])))
    assert "script" not in page.tags
    assert "<script>" in page.text


def test_one_run_is_no_comparison():
    with pytest.raises(ValueError, match="needs at least two runs; got 1"):
        compare([run_of()])

import dataclasses
import math

import pytest

from tests.components.report.pages import Page
from tests.components.report.runs import run_of, series_of
from tfx_tpu_trainer.components.report import RunData, Verdict, render
from tfx_tpu_trainer.components.report._run_data import (
    Answer,
    CheckOfServing,
    Curve,
    Errors,
    Layer,
    Learning,
    Lineage,
    Measured,
    MeasuredSlice,
    Preflight,
    StepOnTpu,
)

_MARKUP = "<script>alert(1)</script>&amp;\"'"
_SECTIONS = [
    "Verdict",
    "Numbers",
    "Learning",
    "Slices",
    "Model",
    "Serving",
    "Lineage",
]


def _slices(count, *, rows=1000):
    return tuple(
        MeasuredSlice(name=f"hour={n}", num_examples=rows, metrics={"accuracy": n / count})
        for n in range(count)
    )


def test_each_number_stands_under_its_name():
    page = Page(render(run_of()))
    assert ["accuracy", "0.88522"] in page.rows
    assert page.row("loss_by_rows") == ["0.222222"]
    assert "The checkpoint of step 3, measured on 4,966 rows." in page.text
    assert "1,234 parameters, and 2,468 values of the optimizer." in page.text
    assert "0.7 MB" in page.text
    assert page.row("on the host") == ["17"]
    assert page.row("exports") == ["7.5"]
    assert "It ran on 4 emulated TPU cores; it took 20.0 seconds." in page.text
    assert "1 of 1 checks passed. A server warms up with 2 requests." in page.text
    assert "3 steps, with 1 restart." in page.text
    assert not page.unclosed


def test_sections_follow_in_one_order_and_links_lead_to_them():
    text = render(run_of())
    page = Page(text)
    assert page.links == [f"#{title.lower()}" for title in _SECTIONS]
    for title in _SECTIONS:
        assert text.count(f'<section id="{title.lower()}"') == 1


def test_nothing_runs_and_nothing_is_loaded():
    page = Page(render(run_of()))
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert "@import" not in page.source
    assert "@font-face" not in page.source


def test_each_picture_says_what_it_shows_and_has_its_table():
    page = Page(render(run_of()))
    # Loss, accuracy, slices, layers, phases; the loss for wide and for narrow screens.
    assert page.tags.count("figure") == page.tags.count("details") == 5
    assert page.source.count('<svg role="img" aria-label=') == 6
    assert page.source.count('<figure class="full">') == 1
    assert "loss by step: training from 0.75 at step 1 to 0.25 at step 3" in page.source
    assert ["2", "0.5"] in page.rows
    assert ["2", "0.9"] in page.rows


def test_phases_add_up_to_the_parts_of_a_training():
    seconds = {"rest": 0.25, "export": 2, "train": 8, "MLflow": 3, "input check": 1, "preflight": 4}
    page = Page(render(run_of(lineage=Lineage(phase_seconds=seconds | {"publish": 0.5}))))
    parts = [["checks", "5"], ["steps", "8"], ["exports", "2.5"], ["MLflow", "3"], ["rest", "0.2"]]
    first = page.rows.index(parts[0])
    assert page.rows[first : first + len(parts)] == parts
    assert "it took 18.8 seconds" in page.text


def test_what_was_measured_once_is_no_curve():
    learning = Learning(series=(series_of([0.5]), series_of([1, 2], name="a", source="eval")))
    page = Page(render(run_of(learning=learning)))
    assert "1 other scalar is in run.json." in page.text
    assert "loss by step" not in page.source
    assert "a by step" in page.source


def test_of_an_evaluations_two_losses_that_of_the_rows_is_drawn_and_both_are_explained_once():
    learning = Learning(
        series=(
            series_of([0.75, 0.5]),
            series_of([0.7, 0.6], source="eval"),
            series_of([0.71, 0.61], name="loss_by_rows", source="eval"),
        )
    )
    page = Page(render(run_of(learning=learning)))
    assert ["2", "0.5", "0.61"] in page.rows
    assert "loss_by_rows by step" not in page.source
    assert "other scalar" not in page.text
    assert page.text.count("the mean over the batches") == 1
    names = [row[0] for row in page.rows]
    assert names.index("accuracy") < names.index("loss_by_rows") == names.index("loss") - 1


@pytest.mark.parametrize(("first", "is_log"), [(1.0, True), (0.9, False), (math.nan, False)])
def test_a_loss_that_falls_far_has_a_logarithmic_chart(first, is_log):
    page = Page(render(run_of(learning=Learning(series=(series_of([first, 0.5, 0.049]),)))))
    assert page.source.count(">logarithmic</text>") == (2 if is_log else 0)


def test_names_with_markup_stay_text():
    text = render(run_of(_MARKUP))
    page = Page(text)
    assert "script" not in page.tags
    assert _MARKUP in page.text
    assert not page.unclosed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stopped": "ValueError: no"}, "The training stopped at step 3: ValueError: no"),
        (
            {"stopped": "no", "learning": Learning()},
            "The training stopped before its first step was logged: no",
        ),
        ({"measured": None}, "Not evaluated."),
        ({"verdict": Verdict(blessed=True, says="blessed: auc is 1")}, "Blessed: auc is 1"),
        ({"verdict": Verdict(blessed=False, says="not blessed: <b>")}, "Not blessed: <b>"),
        ({"verdict": Verdict(blessed=False, says="")}, "Not blessed"),
        (
            {"verdict": Verdict(blessed=None, says="")},
            "Trained, evaluated and exported: accuracy 0.8852.",
        ),
        ({"exported": None}, "Trained and evaluated: accuracy 0.8852."),
        (
            {
                "serving_checks": (
                    CheckOfServing(name="c", outcome="failed", detail="d", seconds=1),
                )
            },
            "The exported model must not be served: c: d",
        ),
    ],
)
def test_the_verdict_comes_first_and_in_a_sentence(changes, says):
    assert says in Page(render(run_of(**changes))).text


@pytest.mark.parametrize(
    ("verdict", "training", "says"),
    [
        (Verdict(blessed=False, says=""), 0.047, "It overfits: the training loss is far below"),
        (Verdict(blessed=False, says=""), 2.0, "It does not overfit (training 2, evaluation 2.23)"),
        (None, 0.047, "It overfits: the training loss is far below"),
        (None, 2.0, None),
        (Verdict(blessed=True, says=""), 0.047, None),
        # The exported step 3 is before step 4.
        (None, (2.0, 0.047), None),
        (Verdict(blessed=False, says=""), (2.0, 0.047), "It overfits"),
    ],
)
def test_losses_far_apart_are_called_overfitting(verdict, training, says):
    of_steps = training if isinstance(training, tuple) else (training,)
    series = (series_of([3.0, 2.5, *of_steps]), series_of([0.6, 2.23], source="eval"))
    text = Page(render(run_of(verdict=verdict, learning=Learning(series=series)))).text
    assert says in text if says else "overfit" not in text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_has_diverged_is_called_so(value):
    measured = Measured(global_step=1, num_examples=1, seconds=1.0, metrics={"loss": value})
    page = Page(render(run_of(measured=measured)))
    assert "The model has diverged" in page.text
    assert page.row("loss") == [str(value)]


def test_intervals_stand_beside_their_metrics():
    measured = dataclasses.replace(
        run_of().measured, intervals={"accuracy": (0.8, 0.97)}, sampled_rows=2000
    )
    page = Page(render(run_of(measured=measured)))
    assert ["accuracy", "0.88522", "0.8 to 0.97"] in page.rows
    assert page.row("loss_by_rows") == ["0.222222", ""]
    assert "100 resamplings of 2,000 rows" in page.text


def test_the_verdict_says_since_when_and_against_what():
    verdict = Verdict(
        blessed=True,
        says="blessed",
        since=86400.0,
        baseline="models/7",
        baseline_run="2026-11-24",
        baseline_since=3600.0,
    )
    page = Page(render(run_of(verdict=verdict)))
    assert "Since 1970-01-02 00:00 UTC." in page.text
    assert "The baseline is models/7, of run 2026-11-24, written 1970-01-01 01:00 UTC." in page.text
    alone = dataclasses.replace(verdict, baseline=None)
    assert "No baseline was available for comparison." in Page(render(run_of(verdict=alone))).text


def test_hbm_is_drawn_up_to_the_limit_and_again_where_the_model_is_small():
    gib = 2**30
    step = StepOnTpu(
        name="train",
        ok=True,
        says="compiles and fits",
        need_bytes=3 * gib,
        limit_bytes=16 * gib,
        by_category={"variables and inputs": gib, "values in between": 2 * gib},
    )
    large = Preflight(tpu="v5e:2x2", compiler="libtpu 1", steps=(step,))
    page = Page(render(run_of(preflight=large)))
    assert "It compiles for v5e:2x2 and fits (train), according to libtpu 1." in page.text
    assert ["train", "1", "2", "3"] in page.rows
    assert "zoomed" not in page.text
    small = dataclasses.replace(
        step, need_bytes=2**20, by_category={"program": 2**20}, limit_bytes=16 * gib
    )
    page = Page(render(run_of(preflight=dataclasses.replace(large, steps=(small,)))))
    assert "The same, zoomed" in page.text
    assert ["train", "1", "1"] in page.rows
    assert "The largest step needs 1 MiB of 16 GiB, 0.01%" in page.text


def test_a_step_that_does_not_fit_is_the_models_bad_news():
    step = StepOnTpu(
        name="train", ok=False, says="<too> large", need_bytes=99, limit_bytes=9, by_category={}
    )
    preflight = Preflight(tpu="v5e:1x1", compiler="libtpu 1", steps=(step,))
    page = Page(render(run_of(preflight=preflight)))
    assert "On v5e:1x1 it can't run: train: <too> large" in page.text
    assert ["train", "99", "99"] in page.rows


def test_latency_code_rows_and_restarts_are_told():
    answer = Answer(
        signature="predict", rows=32, first_seconds=1.25, median_seconds=0.0075, repeats=10
    )
    run = run_of(answers=(answer,))
    lineage = dataclasses.replace(run.lineage, code="taxi.model@12", rows={"training": 128_000})
    page = Page(render(dataclasses.replace(run, lineage=lineage)))
    assert "an answer of predict for 32 rows after 7.5 ms." in page.text
    assert page.row("predict") == ["32", "1,250", "7.5", "10"]
    assert "Code: taxi.model@12" in page.text
    assert page.row("training") == ["128,000"]
    assert "Energy is not measured." in page.text
    assert ["2", "1970-01-01 00:00 UTC"] in page.rows


def test_a_baselines_metrics_stand_beside_the_models():
    verdict = Verdict(
        blessed=False, says="worse", baseline="models/<7>", baseline_metrics={"accuracy": 0.91}
    )
    page = Page(render(run_of(verdict=verdict)))
    assert ["accuracy", "0.88522", "0.91"] in page.rows
    assert page.row("loss_by_rows") == ["0.222222", ""]
    assert "The baseline is models/<7>" in page.text


def test_errors_have_a_matrix_curves_and_a_summary():
    errors = Errors(
        kind="scores",
        label="labels",
        prediction="probability",
        rows=10,
        seen=40,
        is_weighted=True,
        confusion=((3, 1), (2, 4)),
        curves=(Curve(name="ROC", x_name="fpr", y_name="tpr", x=(0, 0.5, 1), y=(0, 0.75, 1)),),
        summary={"area": 0.625},
    )
    page = Page(render(run_of(errors=errors)))
    assert "probability against labels; 7 of 10 rows are correct." in page.text
    assert "A sample of 10 of 40 rows" in page.text
    assert "weights are ignored" in page.text
    assert ["0", "3", "1"] in page.rows
    assert ["1", "2", "4"] in page.rows
    assert ["0.5", "0.75"] in page.rows
    assert page.row("area") == ["0.625"]
    assert "7 of 10 rows are on its diagonal" in page.source
    named = Page(render(run_of(errors=dataclasses.replace(errors, classes=("no", "<yes>")))))
    assert ["label", "taken for no", "taken for <yes>"] in named.rows
    assert ["<yes>", "2", "4"] in named.rows
    assert "a score above 0.5 as <yes>." in named.text
    assert "&lt;yes&gt;</text>" in named.source


def test_values_that_are_not_finite_are_in_the_table_and_not_in_the_picture():
    learning = Learning(
        series=(series_of([0.5, math.nan, math.inf, 0.25]), series_of([math.nan] * 2, name="only"))
    )
    page = Page(render(run_of(learning=learning, measured=None)))
    assert ["2", "NaN"] in page.rows
    assert ["3", "Infinity"] in page.rows
    assert page.tags.count("figure") == 2 + 2
    assert page.source.count("<svg") == 2 + 2
    assert "NaN," not in page.source


def test_a_run_of_which_nothing_is_known_has_a_page():
    page = Page(render(RunData(title="empty", written=0.0)))
    assert page.links == ["#verdict"]
    assert "Not evaluated." in page.text
    assert "svg" not in page.tags


def test_slices_are_shown_worst_and_best_first():
    measured = dataclasses.replace(
        run_of().measured, metrics={"accuracy": 0.5}, slices=_slices(10_000)
    )
    text = render(run_of(measured=measured))
    page = Page(text)
    assert "hour=0 is worst (0) and hour=9999 is best (0.9999)." in page.text
    shown = [row[0] for row in page.rows if row[0].startswith("hour=") and len(row) == 3]
    assert shown == [f"hour={n}" for n in (*range(10), *range(9990, 10_000))]
    assert "The 10 worst and the 10 best of 10,000 are shown" in page.text
    assert len(text) < 1_000_000


def test_of_a_loss_the_largest_is_the_worst():
    slices = tuple(
        MeasuredSlice(name=f"n={n}", num_examples=500, metrics={"average_loss": n})
        for n in (1, 3, 2)
    )
    measured = Measured(
        global_step=1, num_examples=9, seconds=1.0, metrics={"average_loss": 2.0}, slices=slices
    )
    assert "n=3 is worst (3) and n=1 is best (1)" in Page(render(run_of(measured=measured))).text


def test_slices_of_few_rows_are_warned_of():
    slices = (*_slices(3), *_slices(2, rows=99))
    measured = dataclasses.replace(run_of().measured, metrics={"accuracy": 0.5}, slices=slices)
    assert "2 of 5 slices have fewer than 100 rows" in Page(render(run_of(measured=measured))).text


def test_a_page_of_very_much_stays_below_1_mb():
    long = "n" * 100_000
    learning = Learning(
        series=tuple(
            series_of([math.sin(n * k) for n in range(600)], name=f"{k}{long}", thinned_from=10**6)
            for k in range(200)
        )
    )
    layers = tuple(
        Layer(name=f"{k}{long[:999]}", parameters=k, slots=0, bytes=k) for k in range(1000)
    )
    text = render(
        run_of(
            learning=learning,
            layers=layers,
            lineage=Lineage(settings={"params.vocabulary": long}),
            stopped=long,
        )
    )
    assert len(text.encode()) < 1_000_000
    assert "188 other scalars are in run.json." in text
    assert "980 others" in text


def test_what_could_not_be_read_is_listed():
    assert "x is damaged" in Page(render(run_of(unread=("x is damaged",)))).text

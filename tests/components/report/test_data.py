"""Compares the page's data section with the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from tensorflow_metadata.proto.v0 import statistics_pb2

from tests.bad_input import row
from tests.components.report.pages import Page
from tests.components.report.runs import run_of
from tests.components.report.statistics_files import write_statistics
from tfx_tpu_trainer.components.report import render
from tfx_tpu_trainer.components.report._data import read_data
from tfx_tpu_trainer.components.report._gathering import gather
from tfx_tpu_trainer.components.report._run_data import from_json, to_json

_RANDOM = np.random.default_rng(7)
_MARKUP = "<b>&amp;\"'"


def _numbers(count, *, power):
    # With both ends, so buckets of equal width are the same.
    return [0.0, 1.0, *(np.linspace(0.01, 0.99, count - 2) ** power)]


_TRAIN = {
    "fare": _numbers(400, power=1),
    "kind": ["cash"] * 300 + ["card"] * 100,
    "count": list(range(400)),
    "gaps": [None] * 100 + [2.5] * 300,
}
_EVAL = {
    "fare": _numbers(200, power=3),
    "kind": ["cash"] * 60 + ["card"] * 120 + ["none"] * 20,
    "count": list(range(200)),
    "gaps": [2.5] * 200,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_statistics(tmp_path_factory.mktemp("statistics"), train=_TRAIN, eval=_EVAL)


@pytest.fixture(scope="module")
def data(folder):
    return read_data(folder)


def test_rows_and_features_are_those_of_the_splits(data):
    assert data.splits == {"train": 400, "eval": 200}
    features = {feature.name: feature for feature in data.features}
    assert set(features) == set(_TRAIN)
    assert data.all_features == 4
    fare = features["fare"].by_split["train"]
    assert features["fare"].kind == "float"
    assert fare.mean == pytest.approx(np.mean(_TRAIN["fare"]), rel=1e-6)
    assert fare.deviation == pytest.approx(np.std(_TRAIN["fare"]), rel=1e-6)
    assert (fare.least, fare.greatest, fare.missing) == (0, 1, 0)
    kind = features["kind"].by_split["eval"]
    assert (features["kind"].kind, kind.unique, kind.most_frequent) == ("text", 3, "card")
    assert features["count"].kind == "integer"
    assert features["gaps"].by_split["train"].missing == 100
    assert features["gaps"].by_split["eval"].missing == 0


def _shares(values):
    names, counts = np.unique(values, return_counts=True)
    return dict(zip(names.tolist(), (counts / len(values)).tolist()))


def test_distances_are_those_of_the_rows(data):
    (drift,) = data.drift
    assert (drift.rows, drift.against, drift.new, drift.gone) == (
        "split eval",
        "split train",
        (),
        (),
    )
    found = {each.feature: each for each in drift.distances}
    now, before = _shares(_EVAL["kind"]), _shares(_TRAIN["kind"])
    largest = max(abs(now[name] - before.get(name, 0)) for name in now)
    kind, fare, gaps = found["kind"], found["fare"], found["gaps"]
    assert (kind.measure, kind.of) == ("L-infinity", "share of cash")
    assert (kind.value, kind.now, kind.before) == pytest.approx((largest, 0.3, 0.75), rel=1e-6)
    means = [np.mean(rows["fare"]) for rows in (_EVAL, _TRAIN)]
    deviation = np.std([*_EVAL["fare"], *_TRAIN["fare"]], ddof=1)
    assert (fare.measure, fare.of) == ("standard deviations", "mean")
    assert fare.value == pytest.approx(abs(np.subtract(*means)) / deviation, rel=1e-5)
    assert (gaps.of, gaps.now, gaps.before) == ("share of rows without a value", 0, 0.25)
    beyond = [each.beyond for each in drift.distances]
    assert beyond == sorted(beyond, reverse=True)


@pytest.mark.parametrize(
    "values",
    [
        _RANDOM.lognormal(sigma=2, size=600).tolist(),
        _RANDOM.choice(["a", "b", "c"], size=600).tolist(),
    ],
)
def test_chance_is_what_random_assignments_of_the_rows_show(values, tmp_path):
    """Against a permutation test of the rows, which the statistics' moments stand for."""
    splits = {"train": {"x": values[:400]}, "eval": {"x": values[400:]}}
    (drift,) = read_data(write_statistics(tmp_path, **splits)).drift
    (found,) = drift.distances
    numbers = np.array(values if found.of == "mean" else [found.of.endswith(v) for v in values])
    differences = []
    for _ in range(4000):
        mixed = _RANDOM.permutation(numbers).astype(float)
        differences.append(mixed[400:].mean() - mixed[:400].mean())
    count = 1 if found.of == "mean" else 3
    deviation = 1 if found.of != "mean" else np.std(numbers, ddof=1)
    bound = scipy.stats.norm.isf(0.025 / count) * np.std(differences) / deviation
    assert found.chance == pytest.approx(bound, rel=0.06)
    assert found.beyond <= 1


def test_random_parts_of_the_same_rows_are_no_alarm_and_others_are(tmp_path, data):
    rows = _RANDOM.permutation(3000)
    columns = {
        "far": np.where(rows == 7, 1e6, rows % 50).tolist(),
        "rare": [f"v{n % 500}" for n in rows],
    }
    parts = [
        {name: values[part] for name, values in columns.items()}
        for part in (slice(2000), slice(2000, 3000))
    ]
    same = read_data(write_statistics(tmp_path, train=parts[0], eval=parts[1]))
    page = Page(render(run_of(data=same)))
    assert "Split eval differs from split train by no more than chance." in page.text
    assert not any(row[:1] == ["far"] and len(row) == 6 for row in page.rows)
    other = Page(render(run_of(data=data)))
    assert "by more than chance in 4 of 4 features, most in " in other.text
    warnings = [each.source.count('class="says warn"') for each in (page, other)]
    assert warnings[1] == warnings[0] + 1


def test_the_baselines_data_is_compared_and_changed_features_are_named(folder, tmp_path):
    before = write_statistics(
        tmp_path, train={"fare": _TRAIN["fare"], "old": [1.0] * 400}, eval={"fare": [1.0]}
    )
    data = read_data(folder, baseline=before)
    drift = data.drift[-1]
    assert (drift.rows, drift.against) == ("split train", "the baseline's split train")
    assert set(drift.new) == {"kind", "count", "gaps"}
    assert drift.gone == ("old",)
    ((feature, value),) = [(each.feature, each.value) for each in drift.distances]
    assert feature == "fare"
    assert value == pytest.approx(0, abs=1e-9)
    page = Page(render(run_of(data=data)))
    assert "Only the baseline's split train has 1 of the features: old." in page.text
    assert (
        "Split train differs from the baseline's split train by no more than chance." in page.text
    )
    other = read_data(
        write_statistics(tmp_path / "other", train=_EVAL, eval=_EVAL), baseline=folder
    )
    says = Page(render(run_of(data=other))).text
    farthest = other.drift[-1].distances[0]
    assert f"by more than chance in 4 of 4 features, most in {farthest.feature}." in says


def test_the_section_has_rows_features_and_distances(data):
    page = Page(render(run_of(data=data)))
    assert "200 rows in eval, 400 rows in train; 4 features." in page.text
    assert ["gaps", "float", "25.0% of train", "2.5 ± 0", "2.5 to 2.5"] in page.rows
    assert ["kind", "text", "none", "cash", "2 different"] in page.rows
    (drift,) = data.drift
    (kind,) = (each for each in drift.distances if each.feature == "kind")
    chance = f"{kind.chance:.1%}"
    assert ["kind", "share of cash", "30.0%", "75.0%", "45.0%", chance] in page.rows


def test_names_with_markup_and_features_without_values_have_a_page(tmp_path):
    columns = {_MARKUP: ["<script>"] * 9, "nothing": [None] * 9, "nan": [float("nan")] * 9}
    data = read_data(write_statistics(tmp_path, train=columns, eval=columns))
    page = Page(render(run_of(data=data)))
    assert "script" not in page.tags
    assert [_MARKUP, "text", "none", "<script>", "1 different"] in page.rows
    assert from_json(to_json(run_of(data=data))).data == data
    (nothing,) = (row for row in page.rows if row[0] == "nothing")
    assert nothing[2].startswith("100.0% of")
    assert not page.unclosed


def test_of_very_many_features_some_are_shown_and_the_page_stays_small(tmp_path):
    columns = {"f": [1.0, 2.0]}
    folder = write_statistics(tmp_path, train=columns, eval=columns)
    for path in tmp_path.rglob("FeatureStats.pb"):
        _repeat_feature(path, 1200)
    data = read_data(folder)
    assert (len(data.features), data.all_features) == (1000, 1200)
    text = render(run_of(data=data))
    assert "30 of 1,200; run.json has more." in Page(text).text
    assert len(text.encode()) < 300_000


def _repeat_feature(path, count):
    """Repeats the feature of a split: TFDV would take a minute to measure so many."""
    found = statistics_pb2.DatasetFeatureStatisticsList.FromString(path.read_bytes())
    (split,) = found.datasets
    (feature,) = split.features
    for n in range(1, count):
        split.features.add().CopyFrom(feature)
        split.features[n].path.step[0] = f"f{n}"
    path.write_bytes(found.SerializeToString())


@row(
    "eval_metrics",
    "a page of statistics that are none",
    "FeatureStats.pb can't be read as statistics of TFDV",
)
def test_damaged_statistics_are_named_and_the_rest_is_there(tmp_path, refused):
    split = tmp_path / "Split-train"
    split.mkdir()
    (split / "FeatureStats.pb").write_bytes(b"\xff" * 9)
    with refused(ValueError):
        read_data(str(tmp_path))
    found = gather(None, title="t", statistics=str(tmp_path))
    assert found.data is None
    assert any("FeatureStats.pb can't be read" in line for line in found.unread)


@row(
    "eval_metrics",
    "a page of a folder without statistics",
    "has no statistics (Split-*/FeatureStats.pb): let StatisticsGen write them again",
)
def test_a_folder_without_statistics_is_refused(tmp_path, refused):
    with refused(ValueError):
        read_data(str(tmp_path))


def test_statistics_of_a_baseline_that_are_gone_leave_those_of_the_run(folder, tmp_path):
    found = gather(None, title="t", statistics=folder, baseline_statistics=str(tmp_path))
    assert found.data.splits == {"train": 400, "eval": 200}
    assert any("has no statistics" in line for line in found.unread)

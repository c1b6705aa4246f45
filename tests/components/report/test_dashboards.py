"""What TensorBoard's dashboards show of a training, read by TensorBoard itself."""

from __future__ import annotations

import json
import math
import time
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sklearn
from tensorboard import program
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from tests.components.report.runs import run_of
from tests.estimator import linear_model
from tests.estimator.each_place import estimator
from tests.estimator.tpu.on_cores import train_input_fn
from tfx_tpu_trainer.components.report import gather, write, write_dashboards
from tfx_tpu_trainer.estimator._engine.evaluating.sampled_rows import RowSample

v1 = tf.compat.v1

_ROWS = 200
_RANDOM = np.random.default_rng(3)
_SCORES = _RANDOM.random(_ROWS).astype(np.float32)
_LABELS = (_RANDOM.random(_ROWS) < _SCORES).astype(np.int64)


def _sample(columns):
    return RowSample(columns=columns, seen=_ROWS, deviations=dict)


def _train(folder):
    """A training and its evaluation, with all that TensorBoard can be told."""
    config = {"gradient_norms": True, "histograms": True}
    trained = estimator(folder, "host", config=config, save_summary_steps=2)
    trained.train(train_input_fn, max_steps=4)
    return trained, trained.evaluate(linear_model.input_fn)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logdir")
    for name, rate in (("monday", 0.5), ("tuesday", 0.25)):
        _train(folder / name)
        run = gather(str(folder / name), title=f"taxi: {name}")
        write_dashboards(
            run,
            str(folder / name),
            rows=_sample({"labels": _LABELS, "probabilities": _SCORES}),
            hparams={"rate": rate, "units": [4, 2], "is_deep": True, "name": "a|b", "none": None},
            page=f"{folder}/{name}/run.html",
        )
    v1.summary.FileWriterCache.clear()
    return folder


class _Board:
    """A TensorBoard on this machine, asked as its page asks it."""

    def __init__(self, logdir):
        served = program.TensorBoard()
        # Loaded once: no thread of it works on beside the tests that follow.
        options = ["--port", "0", "--load_fast", "false", "--reload_interval", "0"]
        served.configure(argv=["", "--logdir", str(logdir), *options])
        self._address = served.launch()

    def get(self, path, **body):
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            self._address + path, data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def _served(logdir):
    board = _Board(logdir)
    while len(board.get("data/runs")) < 4:
        time.sleep(0.1)
    return board


def test_a_tensorboard_shows_every_dashboard(logdir):
    board = _served(logdir)
    scalars = board.get("data/plugin/scalars/tags")
    assert {"loss", "gradient_norm", "exported/loss"} <= set(scalars["monday"])
    assert {"loss", "mae"} <= set(scalars["monday/eval"])
    histograms = board.get("data/plugin/histograms/tags")
    assert {"gradients/linear/weights", "weights/linear/bias"} <= set(histograms["monday"])
    assert set(board.get("data/plugin/pr_curves/tags")["monday/eval"]) == {"classes/pr_curves"}
    texts = board.get("data/plugin/text/tags")
    assert "page/text_summary" in texts["tuesday"]
    (told,) = board.get("data/plugin/text/text?run=tuesday&tag=page/text_summary")
    assert f"<code>{logdir}/tuesday/run.html</code>" in told["text"]
    layout = board.get("data/plugin/custom_scalars/layout")
    charts = {each["title"]: [c["title"] for c in each["chart"]] for each in layout["category"]}
    assert charts["Loss"] == ["loss"]
    assert charts["Gradients"] == ["norms"]
    assert {"mae", "mean_output"} <= set(charts["Quality"])
    drawn = board.get("data/plugin/custom_scalars/scalars?run=monday&tag=%5Eloss%24")
    assert list(drawn["tag_to_events"]) == ["loss"]
    groups = board.get(
        "data/plugin/hparams/session_groups",
        experimentName="",
        allowedStatuses=["STATUS_SUCCESS"],
        startIndex=0,
        sliceSize=10,
    )["sessionGroups"]
    named = {group["name"].split(" 20")[0]: group for group in groups}
    assert set(named) == {"taxi: monday", "taxi: tuesday"}
    assert named["taxi: monday"]["hparams"] == {
        "rate": 0.5,
        "units": "[4, 2]",
        "is_deep": True,
        "name": "a|b",
    }


def test_metrics_of_the_hparams_dashboard_are_those_of_the_evaluation(tmp_path):
    trained, metrics = _train(tmp_path)
    write(trained)
    v1.summary.FileWriterCache.clear()
    board = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    for name in ("loss", "mae", "mean_output"):
        (event,) = board.Tensors(".", f"exported/{name}")
        assert event.step == 4
        assert tf.make_ndarray(event.tensor_proto) == pytest.approx(metrics[name])


def _curve(folder, tag="classes/pr_curves"):
    (event,) = EventMultiplexer({"eval": str(folder / "eval")}).Reload().Tensors("eval", tag)
    return event.step, tf.make_ndarray(event.tensor_proto)


def test_pr_curves_are_those_of_scikit_learn(logdir):
    step, (true_positives, false_positives, _, _, precision, recall) = _curve(logdir / "monday")
    assert step == 4
    thresholds = np.linspace(0, 1, len(recall))
    # What is sorted into one of 200 bins of scores.
    at = [0, 50, 100, 150]
    for number in at:
        chosen = np.floor(_SCORES * (len(recall) - 1)) >= number
        assert true_positives[number] == (_LABELS[chosen] == 1).sum()
        assert false_positives[number] == (_LABELS[chosen] == 0).sum()
        assert recall[number] == pytest.approx(sklearn.recall_score(_LABELS, chosen))
        assert precision[number] == pytest.approx(sklearn.precision_score(_LABELS, chosen))
    assert thresholds[100] == 0.5


@pytest.mark.parametrize("is_logits", [False, True])
def test_each_of_several_classes_has_a_pr_curve(tmp_path, is_logits):
    logits = _RANDOM.normal(size=(_ROWS, 3))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = _RANDOM.integers(0, 3, _ROWS)
    name, values = ("logits", logits) if is_logits else ("probabilities", shares)
    write_dashboards(run_of(), str(tmp_path), rows=_sample({"labels": labels, name: values}))
    for number in range(3):
        _, curve = _curve(tmp_path, f"class_{number}/pr_curves")
        chosen = np.floor(shares[:, number] * (curve.shape[1] - 1)) >= 60
        assert curve[5, 60] == pytest.approx(sklearn.recall_score(labels == number, chosen))


@pytest.mark.parametrize(
    "columns",
    [
        {"labels": np.arange(5.0), "predictions": np.arange(5.0) / 2},
        {"labels": np.zeros(5, np.int64), "probabilities": np.full(5, 0.5)},
        {"labels": np.ones(5, np.int64), "probabilities": np.full(5, np.nan)},
        {"labels": np.ones(5, np.int64), "logits": np.array([["a"]] * 5)},
        {"other": np.ones(5)},
        {},
    ],
)
def test_rows_of_which_no_curve_can_be_made_have_none(tmp_path, columns):
    write_dashboards(run_of(), str(tmp_path), rows=_sample(columns))
    assert not (tmp_path / "eval").exists()


def test_a_second_writing_takes_the_place_of_the_first(tmp_path):
    for rate in (1, 2):
        write_dashboards(
            run_of(),
            str(tmp_path),
            rows=_sample({"labels": _LABELS, "probabilities": _SCORES}),
            hparams={"rate": rate},
        )
    assert len(list(tmp_path.glob("*.hparams"))) == len(list(tmp_path.glob("*.boards"))) == 1
    _curve(tmp_path)


def test_a_page_is_not_made_of_what_is_written_for_the_dashboards(tmp_path):
    trained, _ = _train(tmp_path)
    v1.summary.FileWriterCache.clear()
    before = gather(str(tmp_path), title="t").learning
    write(trained)
    assert gather(str(tmp_path), title="t").learning == before


def test_a_training_that_failed_is_shown_as_failed_with_its_reason(tmp_path):
    run = run_of(stopped="ValueError: a | b", measured=None)
    write_dashboards(run, str(tmp_path), hparams={"rate": math.inf, "text": "<b>"})
    board = EventMultiplexer({".": str(tmp_path)}).Reload()
    (event,) = board.Tensors(".", "stopped/text_summary")
    assert b"ValueError: a \\| b" in event.tensor_proto.string_val[0]
    assert event.step == 3

"""Compares the facts gathered from real trainings with their estimators' results."""

from __future__ import annotations

import json
import math
import pathlib
import shutil

import pytest
import tensorflow as tf

from tests.components.report.pages import Page
from tests.components.report.runs import run_of
from tests.estimator.schedule import plain
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.components import report
from tfx_tpu_trainer.components.report import read_run_data, write_run_data
from tfx_tpu_trainer.components.report._events import read_learning
from tfx_tpu_trainer.components.report._gathering import gather, gather_folder
from tfx_tpu_trainer.components.report._run_data import (
    Learning,
    Measured,
    MeasuredSlice,
    RunData,
    Series,
    from_json,
    to_json,
)

v1 = tf.compat.v1


def _model_fn(features, labels, mode, params):
    """Two layers, of 3x4+4 and 4x1+1 parameters, trained by Adam: two slots each."""
    hidden = v1.layers.dense(features["x"], 4, name="hidden")
    outputs = v1.layers.dense(hidden, 1, name="logits")[:, 0]
    if mode == "infer":
        return tfe.EstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean(tf.square(outputs - labels))
    train_op = None
    if mode == "train":
        optimizer = v1.train.AdamOptimizer(params["rate"])
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    metrics = {"mae": v1.metrics.mean_absolute_error(labels, outputs)}
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


class _Trained:
    def __init__(self, folder):
        config = tfe.RunConfig(model_dir=str(folder / "trained"), save_summary_steps=5)
        estimator = tfe.Estimator(_model_fn, config=config, params={"rate": 0.01})
        estimator.train(plain.train_input, max_steps=20)
        self.metrics = estimator.evaluate(plain.eval_input)
        self.exported = tf.compat.as_str_any(
            estimator.export_saved_model(str(folder / "exported"), plain.receiver_fn)
        )
        self.estimator = estimator


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return _Trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def run(trained):
    return gather(trained.estimator.model_dir, title="t", exported=trained.exported)


def test_metrics_are_what_evaluate_has_returned(trained, run):
    # Batches of equal size: both means of the loss are the same.
    loss, mae = trained.metrics["loss"], trained.metrics["mae"]
    expected = {"loss": loss, "loss_by_rows": loss, "mae": mae}
    assert run.measured.metrics == pytest.approx(expected)
    assert run.measured.global_step == trained.metrics["global_step"] == 20


def test_losses_are_those_that_were_logged(trained, run):
    (series,) = (s for s in run.learning.series if (s.source, s.name) == ("training", "loss"))
    (path,) = tf.io.gfile.glob(f"{trained.estimator.model_dir}/*tfevents*")
    logged = {
        event.step: value.simple_value
        for event in v1.train.summary_iterator(path)
        for value in event.summary.value
        if value.tag == "loss"
    }
    assert dict(zip(series.steps, series.values)) == logged
    assert len(logged) == 4


def test_parameters_and_slots_are_counted_by_layer(run):
    found = {layer.name: (layer.parameters, layer.slots, layer.bytes) for layer in run.layers}
    assert found == {
        "hidden": (3 * 4 + 4, 2 * (3 * 4 + 4), 4 * 3 * (3 * 4 + 4)),
        "logits": (4 + 1, 2 * (4 + 1), 4 * 3 * (4 + 1)),
    }
    assert [layer.name for layer in run.layers] == ["hidden", "logits"]


def test_the_exported_model_is_described(trained, run):
    (graph,) = run.exported.meta_graphs
    assert graph.tags == ("serve",)
    (signature,) = (one for one in graph.signatures if one.name == "serving_default")
    assert signature.inputs == {"x": "float32 [?, 3]"}
    assert signature.outputs == {"y": "float32 [?]"}
    assert set(graph.ops) == {"on the host"}
    files = [path for path in pathlib.Path(trained.exported).rglob("*") if path.is_file()]
    assert run.exported.bytes == sum(path.stat().st_size for path in files)


def test_write_leaves_a_page_and_its_numbers(trained, tmp_path):
    path = report.write(trained.estimator, str(tmp_path / "new"), title="my run")
    assert path == str(tmp_path / "new" / "run.html")
    page = Page(pathlib.Path(path).read_text("utf-8"))
    written = report.read_run_data(str(tmp_path / "new"))
    assert written.title == "my run"
    assert f"{trained.metrics['mae']:.6g}" in page.row("mae")
    assert page.row("params.rate") == ["0.01"]
    assert page.row("save_summary_steps") == ["5"]
    assert page.row("tensorflow") == [tf.__version__]
    assert "model_dir" not in written.lineage.settings
    assert not written.unread


def test_write_goes_to_model_dir_by_default(trained):
    path = report.write(trained.estimator)
    assert path == f"{trained.estimator.model_dir}/run.html"
    # Whoever makes the page again finds what it wrote.
    again = gather_folder(trained.estimator.model_dir)
    assert again.lineage.settings["params.rate"] == "0.01"


def test_write_takes_an_estimator_only(tmp_path):
    with pytest.raises(TypeError, match=r"estimator='a' is not a tfx_tpu_trainer\.estimator"):
        report.write("a", str(tmp_path))


def test_what_cannot_be_read_is_named_and_the_rest_is_there(trained, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained.exported, model / "Format-Serving")
    (model / "Format-Serving" / "saved_model.pb").write_bytes(b"\xff" * 9)
    (model / "eval_metrics.json").write_text("{")
    (model / "serving_check.json").write_text("[]")
    found = gather(trained.estimator.model_dir, title="t", model=str(model))
    assert len(found.unread) == 3
    for name in ("Format-Serving", "eval_metrics.json", "serving_check.json"):
        assert any(name in line for line in found.unread), found.unread
    assert found.exported is None
    # The evaluation's events have it, too.
    assert found.measured.global_step == 20


def test_a_damaged_checkpoint_is_named(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained.estimator.model_dir, folder)
    (folder / "model.ckpt-20.index").write_bytes(b"damaged")
    found = gather(str(folder), title="t")
    assert found.layers == ()
    assert any("model.ckpt-20 can't be read" in line for line in found.unread)
    assert found.learning.series


@pytest.mark.parametrize("which", ["model", "model_run"])
def test_a_model_and_its_checkpoints_are_found_from_either(trained, tmp_path, which):
    shutil.copytree(trained.estimator.model_dir, tmp_path / "model_run" / "7")
    shutil.copytree(trained.exported, tmp_path / "model" / "7" / "Format-Serving")
    known = tmp_path / "model_run" / "7" / "run.json"
    known.unlink(missing_ok=True)
    assert gather_folder(str(tmp_path / which / "7") + "/").title == f"{which}/7"
    report.write(trained.estimator, str(known.parent), title="my run")
    found = gather_folder(str(tmp_path / which / "7") + "/")
    assert found.title == "my run"
    assert found.exported is not None
    assert found.layers


def test_folders_without_a_training_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"The folder '.*/gone'"):
        gather_folder(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match=r"contains no training: give a folder with checkpoints"):
        gather_folder(str(tmp_path))


def _write(folder, values, *, tag="loss", begins_at=None, suffix=""):
    """Writes an event file, as a process that trains does."""
    with tf.Graph().as_default():
        writer = v1.summary.FileWriter(str(folder), filename_suffix=suffix)
        if begins_at is not None:
            log = v1.SessionLog(status=v1.SessionLog.START)
            writer.add_session_log(log, begins_at + 1)
        for step, value in values:
            summary = v1.Summary(value=[v1.Summary.Value(tag=tag, simple_value=value)])
            writer.add_summary(summary, step)
        writer.close()


@pytest.mark.parametrize("name", ["run", "run[lr=0.1]", "run*"])
def test_values_are_those_of_the_files_by_source(tmp_path, name):
    tmp_path = tmp_path / name
    _write(tmp_path, [(1, 0.5), (3, 0.25)])
    _write(tmp_path / "eval", [(3, 2.0)], tag="accuracy")
    _write(tmp_path / "eval_test", [(3, math.nan)], tag="accuracy")
    learning, unread = read_learning(str(tmp_path))
    assert not unread
    assert not learning.restarts
    loss, accuracy, on_test = learning.series
    assert (loss.source, loss.name, loss.steps, loss.values) == (
        "training",
        "loss",
        (1, 3),
        (0.5, 0.25),
    )
    assert (accuracy.source, accuracy.steps, accuracy.values) == ("eval", (3,), (2.0,))
    assert on_test.source == "eval_test"
    assert math.isnan(on_test.values[0])


def test_summaries_of_tf_2_are_read_and_other_tensors_are_not(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("rate", 0.5, step=7)
        tf.summary.text("words", "many", step=7)
        tf.summary.histogram("weights", [1.0, 2.0], step=7)
    learning, unread = read_learning(str(tmp_path))
    (series,) = learning.series
    assert (series.name, series.steps, series.values) == ("rate", (7,), (0.5,))
    assert not unread


def test_the_process_that_went_on_counts_where_steps_are_there_twice(tmp_path):
    _write(tmp_path, [(n, 1.0) for n in range(1, 31)], begins_at=0, suffix=".a")
    _write(tmp_path, [(n, 2.0) for n in range(21, 41)], begins_at=20, suffix=".b")
    learning, _ = read_learning(str(tmp_path))
    (series,) = learning.series
    assert series.steps == tuple(range(1, 41))
    assert series.values == (1.0,) * 20 + (2.0,) * 20
    assert [restart.step for restart in learning.restarts] == [20]
    assert series.thinned_from == 50


@pytest.mark.parametrize(
    "count", [600, 601, 50_000, pytest.param(1_000_000, marks=pytest.mark.sweep)]
)
def test_many_values_become_the_last_of_equal_stretches(tmp_path, count):
    _write(tmp_path, [(n, float(n)) for n in range(count)])
    ((series,), _) = read_learning(str(tmp_path))[0].series, None
    assert series.thinned_from == count
    stretch = 1
    while -(-count // stretch) > 600:
        stretch *= 2
    expected = [min(start + stretch, count) - 1 for start in range(0, count, stretch)]
    assert list(series.steps) == expected
    assert list(series.values) == expected
    assert len(series.steps) > min(count, 601) // 3


def test_a_damaged_file_is_read_up_to_its_damage(tmp_path):
    _write(tmp_path, [(n, float(n)) for n in range(100)])
    (path,) = tmp_path.glob("*tfevents*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    learning, (unread,) = read_learning(str(tmp_path))
    assert str(path) in unread
    assert "read up to the damage" in unread
    (series,) = learning.series
    assert series.steps == tuple(range(len(series.steps)))
    assert 10 < len(series.steps) < 90


def test_a_folder_without_events_has_learned_nothing(tmp_path):
    learning, unread = read_learning(str(tmp_path))
    assert learning.series == ()
    assert unread == ()


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
    for name in ("data", "preflight"):
        del values[name]
    del values["lineage"]["code"], values["lineage"]["rows"]
    assert from_json(json.dumps(values)) == run_of()


def test_keys_of_a_later_version_are_left_out():
    text = to_json(_run(0.5)).replace('"title"', '"energy": 3,\n  "title"', 1)
    assert from_json(text) == _run(0.5)

"""What is gathered of real trainings, against what their estimators say."""

import pathlib
import shutil

import pytest
import tensorflow as tf

from tests.components.report.pages import Page
from tests.estimator.schedule import plain
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.components import report
from tfx_tpu_trainer.components.report._gathering import gather, gather_folder

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
    # What it wrote is found by whoever makes the page again.
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
    # The evaluation's events say it too.
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
    found = gather_folder(str(tmp_path / which / "7") + "/")
    assert found.title == f"{which}/7"
    assert found.exported is not None
    assert found.layers


def test_folders_without_a_training_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"The folder '.*/gone'"):
        gather_folder(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match=r"contains no training: give a folder with checkpoints"):
        gather_folder(str(tmp_path))

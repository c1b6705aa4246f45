"""A training that goes on with other cores, or on the host, is the one that stayed, up to the rounding of sums."""

import logging

import pytest
import tensorflow as tf

from tests.estimator import moving_model
from tests.estimator.moving_model import BATCH, FORMS, MODES, OPTIMIZERS, SIZES, moved, trained
from tests.sweeps import mostly_swept

v1 = tf.compat.v1

ROUNDING = 3e-6
TWO_HOSTS = (16, 8, 2, 0, 16)


def _assert_equal(apart):
    assert apart.pop("seen") == 0
    assert apart["losses"] < 1e-6
    assert max(apart.values()) < ROUNDING, apart


@mostly_swept(
    ("sizes", "mode"),
    [
        ((4, 0, 2), "PER_HOST_V2"),
        ((0, 8, 2), "PER_HOST_V1"),
        *((sizes, mode) for sizes in (SIZES, (2, 16, 0)) for mode in MODES),
        *((TWO_HOSTS, mode) for mode in MODES[:3]),
    ],
    kept=[((4, 0, 2), "PER_HOST_V2")],
)
def test_it_reads_the_same_rows_whatever_its_cores(tmp_path, sizes, mode):
    _assert_equal(moved(tmp_path, sizes=sizes, mode=mode))


@pytest.mark.sweep
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_each_optimizer_goes_on_in_each_form(tmp_path, optimizer, form):
    _assert_equal(moved(tmp_path, form=form, optimizer=optimizer))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "options",
    [
        {"read": moving_model.features_alone, "mode": "PER_HOST_V2"},
        {"read": moving_model.across, "across": True, "batch_axis": [0, 1, 0]},
    ],
    ids=["features alone", "rows along another axis"],
)
def test_a_batch_of_another_structure_is_put_together_too(tmp_path, options):
    _assert_equal(moved(tmp_path, sizes=(16, 4, 0), **options))


@pytest.mark.sweep
def test_replicas_of_several_cores_come_and_go_too(tmp_path):
    two_hosts = {"tpu_config": {"num_cores_per_replica": 8}, "mode": "PER_HOST_V2"}
    trained(tmp_path / "moved", 2, 5, **two_hosts)
    trained(tmp_path / "moved", 4, 10, mode="PER_HOST_V1")
    expected = trained(tmp_path / "stayed", 2, 10, **two_hosts)
    _assert_equal(moving_model.difference(trained(tmp_path / "moved", 4, 10), expected))


def _lines(caplog, folder, sizes, **options):
    caplog.set_level(logging.INFO, "tensorflow")
    for step, cores in enumerate(sizes, 1):
        caplog.clear()
        trained(folder, cores, step, **options)
    records = [each for each in caplog.records if "This training had" in each.getMessage()]
    return [(record.levelname, record.getMessage()) for record in records]


_LAYERS = {
    "batch norm": lambda x: v1.layers.batch_normalization(x, training=True, name="deep/norm"),
    "fused batch norm": lambda x: tf.keras.layers.BatchNormalization(name="deep")(
        x[:, None, None], training=True
    )[:, 0, 0],
    "dropout": lambda x: v1.layers.dropout(x, 0.3, training=True, name="deep/drop"),
    "keras dropout": lambda x: tf.keras.layers.Dropout(0.3, name="drop")(x, training=True),
    "layer norm": lambda x: tf.keras.layers.LayerNormalization()(x),
    "batch norm over cores": lambda x: (
        x / tf.sqrt(v1.tpu.cross_replica_sum(tf.nn.moments(x, [0])[1]) + 1.0)
    ),
}
_MOVED = "This training had 4 replicas of 4 rows and goes on with 1 of 16 rows"


@mostly_swept(
    ("layer", "named"),
    [
        ("batch norm", "deep/norm (Mean) now normalizes over 16 rows of a replica instead of 4"),
        ("fused batch norm", "deep (FusedBatchNormV3) now normalizes over 16 rows"),
        ("dropout", "deep/drop (RandomUniform) draws other numbers"),
        ("keras dropout", "drop (RandomUniform) draws other numbers"),
        ("layer norm", ""),
        ("batch norm over cores", ""),
    ],
    kept=[("dropout", "deep/drop (RandomUniform) draws other numbers")],
)
def test_what_can_not_be_equal_is_named_in_one_line(tmp_path, caplog, layer, named):
    ((level, line),) = _lines(caplog, tmp_path, (4, 0), layer=_LAYERS[layer])
    assert line.startswith(_MOVED)
    assert level == ("WARNING" if named else "INFO")
    assert named in line


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sizes", "lines"), [((4, 4), 0), ((1, 0), 0), ((4, 0, 0), 0), ((2, 4), 1)]
)
def test_the_line_comes_where_cores_have_changed(tmp_path, caplog, sizes, lines):
    assert len(_lines(caplog, tmp_path, sizes, layer=_LAYERS["dropout"])) == lines


@pytest.mark.sweep
def test_a_step_of_other_rows_is_another_training(tmp_path, caplog, monkeypatch):
    trained(tmp_path, 8, 2, mode="PER_HOST_V2")
    monkeypatch.setattr(moving_model, "BATCH", BATCH // 2)
    caplog.set_level(logging.WARNING, "tensorflow")
    trained(tmp_path, 8, 4, mode="PER_HOST_V2")
    assert "belongs to another input" in caplog.text

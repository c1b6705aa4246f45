"""Plans: buffers against batches that were held out, HBM against its formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.preflight import plan_embeddings
from tfx_tpu_trainer.preflight.embeddings import FileIds, ZipfIds

embedding = tf.tpu.experimental.embedding


def _features(**lengths):
    optimizer = embedding.Adagrad(0.1)
    return {
        name: embedding.FeatureConfig(
            table=embedding.TableConfig(
                vocabulary_size=1000, dim=12, name=f"of_{name}", optimizer=optimizer
            ),
            max_sequence_length=length,
        )
        for name, length in lengths.items()
    }


def _drawn(rows, *, exponent=1.0, seed=0, per_row=8):
    return ZipfIds(1000, exponent=exponent, per_row=per_row, rows=rows, seed=seed)


def _plan(ids, *, tpu="v6e:2x4", batch_size=256, features=None, **options):
    return plan_embeddings(
        features=features or _features(**dict.fromkeys(ids, 0)),
        ids=ids,
        tpu=tpu,
        batch_size=batch_size,
        **options,
    )


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
@pytest.mark.parametrize("tpu", ["v6e:2x4", "v5p:2x2x1"])
def test_held_out_batches_of_the_same_data_fit_buffers_of_1_2_times_the_most(tpu, exponent):
    plan = _plan({"x": _drawn(256 * 100, exponent=exponent)}, tpu=tpu)
    assert (plan.batches, plan.held_out_batches) == (80, 20)
    (stack,) = plan.stacks
    for need in (stack.ids, stack.unique_ids):
        assert need.most < need.buffer <= 1.2 * need.most
        assert 0 < need.median <= need.high <= need.most
        assert 0 < need.held_out <= need.buffer and need.is_enough
    assert stack.ids_per_sample.held_out <= plan.max_ids_per_chip_per_sample
    assert plan.ok and not plan.dropping_batches


def test_held_out_batches_that_need_more_are_counted(tmp_path):
    ids = np.tile(np.arange(256), 10)
    # The fifth and the tenth batch are held out: in the tenth, one id is in all rows.
    ids[9 * 256 :] = 3
    np.save(tmp_path / "ids.npy", ids)
    plan = _plan({"x": FileIds([str(tmp_path / "ids.npy")])})
    assert (plan.held_out_batches, plan.dropping_batches, plan.ok) == (2, 1, False)
    need = plan.stacks[0].ids
    assert (need.most, need.held_out, need.is_enough) == (1, 16, False)
    even = _plan({"x": FileIds([str(tmp_path / "ids.npy")])}, rows=9 * 256)
    assert (even.batches, even.held_out_batches, even.ok) == (8, 1, True)
    assert even.imbalance == even.stacks[0].imbalance == 1.0


def test_a_chip_that_has_all_ids_is_as_many_times_busier_as_there_are_chips(tmp_path):
    np.save(tmp_path / "ids.npy", np.full(2560, 5))
    (stack,) = _plan({"x": FileIds([str(tmp_path / "ids.npy")])}).stacks
    # Row 5 is on the sixth of 16 SparseCores: the third chip.
    assert stack.ids_of_chip == (0, 0, 2560, 0, 0, 0, 0, 0)
    assert stack.rows_of_chip == (0, 0, 160, 0, 0, 0, 0, 0)
    assert stack.imbalance == 8.0


def test_hbm_is_that_of_the_formula():
    features = _features(a=0, b=5)
    drawn = {"a": _drawn(2560), "b": _drawn(2560, seed=1)}
    plan = _plan(drawn, features=features)
    (stack,) = plan.stacks
    # Two tables of 1,000 rows, padded to 8 x 16, of 12 values, padded to 16, with Adagrad's: on 8 chips.
    assert stack.table_bytes == 2 * 1024 * 16 * 4 * 2 // 8
    samples = 256 // 8 * (1 + 5)
    assert stack.activation_bytes == 2 * samples * 16 * 4
    assert stack.input_bytes == plan.max_ids_per_chip_per_sample * samples * 3 * 4
    assert stack.buffer_bytes == 3 * 16 * stack.unique_ids.buffer * 16 * 4 * 2
    assert plan.hbm_bytes == stack.hbm_bytes and plan.limit_bytes == int(31.25 * 2**30)


def test_slices_get_the_rows_of_a_batch_in_order_and_have_tables_of_their_own(tmp_path):
    drawn = {}
    for number, name in enumerate("ab"):
        # Squared, so that low ids are frequent.
        ids = 1000 * np.random.default_rng(number).random([2560, 8]) ** 2
        np.save(tmp_path / f"{name}.npy", ids.astype(np.int64))
        drawn[name] = FileIds([str(tmp_path / f"{name}.npy")])
    features = _features(a=0, b=5)
    alone = _plan(drawn, features=features, batch_size=128)
    two = _plan(drawn, features=features, batch_size=256, num_slices=2)
    (one,), (each,) = alone.stacks, two.stacks
    assert (alone.batches + alone.held_out_batches, two.batches + two.held_out_batches) == (20, 10)
    # A slice of two asks for what one slice does for half the rows; only what is held out differs.
    for need, other in ((one.ids, each.ids), (one.unique_ids, each.unique_ids)):
        assert max(need.most, need.held_out) == max(other.most, other.held_out)
    assert (one.ids_of_chip, one.rows_of_chip) == (each.ids_of_chip, each.rows_of_chip)
    assert (one.table_bytes, one.activation_bytes) == (each.table_bytes, each.activation_bytes)
    assert (alone.network_bytes, alone.network_seconds) == (0, 0)


def test_slices_send_each_other_the_gradient_of_each_row_that_they_read_once(tmp_path):
    ids = np.random.default_rng(0).integers(0, 1000, [2560, 3])
    np.save(tmp_path / "ids.npy", ids)
    plan = _plan(
        {"x": FileIds([str(tmp_path / "ids.npy")])}, batch_size=512, num_slices=4, tpu="v6e:2x4"
    )
    rows = [len(np.unique(part)) for part in ids.reshape(20, -1)]
    assert plan.network_bytes == pytest.approx(np.mean(rows) * 12 * 4, abs=1)
    # 8 chips with 100 Gbit/s each.
    assert plan.network_seconds == pytest.approx(plan.network_bytes / 100e9)
    values = json.loads(json.dumps(plan.to_json()))
    assert (values["num_slices"], values["network_bytes"]) == (4, plan.network_bytes)


def test_tables_that_are_too_large_do_not_fit():
    table = embedding.TableConfig(
        vocabulary_size=300_000_000, dim=64, name="large", optimizer=embedding.Adam(0.1)
    )
    features = {"x": embedding.FeatureConfig(table=table)}
    plan = _plan({"x": _drawn(2560)}, features=features, tpu="v6e:1x1")
    assert plan.hbm_bytes > 300_000_000 * 64 * 4 * 3 > plan.limit_bytes
    assert not plan.ok and not plan.dropping_batches


def test_a_dataset_without_end_is_read_as_far_as_asked():
    dataset = tf.data.Dataset.range(1000).repeat().map(lambda number: {"x": number}).batch(256)
    plan = _plan(dataset, features=_features(x=0), rows=10_000)
    assert (plan.rows, plan.ids) == (39 * 256, 39 * 256)


def test_the_settings_and_the_json_have_the_buffers():
    plan = _plan({"a": _drawn(2560), "b": _drawn(2560, seed=1)})
    (stack,) = plan.stacks
    settings = plan.settings()
    assert settings == {
        "max_ids_per_chip_per_sample": plan.max_ids_per_chip_per_sample,
        "max_ids_per_table": {"of_a_of_b": stack.ids.buffer},
        "max_unique_ids_per_table": {"of_a_of_b": stack.unique_ids.buffer},
    }
    if hasattr(embedding, "SparseCoreEmbeddingConfig"):
        assert embedding.SparseCoreEmbeddingConfig(**settings).max_ids_per_table
    values = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert values["settings"] == settings and values["ok"] is True
    assert values["stacks"][0]["ids"]["buffer"] == stack.ids.buffer
    alone = _plan({"a": _drawn(2560), "b": _drawn(2560, seed=1)}, stacking=False)
    assert [each.stack.name for each in alone.stacks] == ["of_a", "of_b"]


@pytest.mark.parametrize(
    "options",
    [
        case("preflight", f"`plan_embeddings({given})`", *says, values=options)
        for given, options, *says in (
            (
                "tpu='v5e:2x4'",
                {"tpu": "v5e:2x4"},
                "TPU 'v5e:2x4': chips of v5e have no SparseCores; use v4, v5p, v6e, tpu7x",
            ),
            ("tpu='v9:8'", {"tpu": "v9:8"}, "unknown generation 'v9'; use one of v2"),
            (
                "batch_size=200",
                {"batch_size": 200},
                "batch size 200 must be divisible by the 16 SparseCores of v6e:2x4: 192 or 208",
            ),
            (
                "num_slices=3",
                {"num_slices": 3},
                "batch size 256 must be divisible by the 48 SparseCores of 3 slices of v6e:2x4: 240 or 288",
            ),
            ("num_slices=0", {"num_slices": 0}, "num_slices=0 must be at least 1"),
            ("hold_out=1", {"hold_out": 1}, "hold_out=1: hold out one batch of 2 or more"),
            ("margin=-0.1", {"margin": -0.1}, "margin=-0.1: give a share from 0 to 10"),
            (
                "rows=1000",
                {"rows": 1000},
                "the ids fill 3 batches of 256 rows, and one of 5 is held out: give at least 1,280 rows",
            ),
        )
    ],
)
def test_what_can_not_be_planned_is_refused(options, refused):
    with refused(ValueError):
        _plan({"x": _drawn(2560)}, **options)


@row(
    "preflight",
    "`plan_embeddings` of features with different numbers of rows",
    "feature 'b' has 512 rows of ids, and 'a' has 2,560: give every feature the same number of "
    "rows, one per example",
)
def test_features_of_different_rows_are_refused(refused):
    with refused(ValueError):
        _plan({"a": _drawn(2560), "b": _drawn(512)})


@row(
    "preflight",
    "`plan_embeddings` without ids for a feature",
    "ids and features have different names: 'b' is in only one of them",
)
def test_a_feature_without_ids_is_refused(refused):
    with refused(ValueError):
        _plan({"a": _drawn(2560)}, features=_features(a=0, b=0))

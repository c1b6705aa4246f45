"""What a training says of a checkpoint that its variables begin with."""

from __future__ import annotations

import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, WarmStartSettings, tpu

v1 = tf.compat.v1


def _save(folder: pathlib.Path, names) -> str:
    folder.mkdir()
    with tf.Graph().as_default(), v1.Session() as session:
        for name in names:
            v1.get_variable(name, initializer=np.ones(3, "float32"))
        v1.train.create_global_step()
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, str(folder / "model.ckpt"))


def _outputs(features, *, norm_scope=None):
    with v1.variable_scope("encoder"):
        weight = v1.get_variable("weight", [3], initializer=v1.zeros_initializer())
        return contrib.layers.layer_norm(features * weight, scope=norm_scope)


def _input_fn(params=None):
    size = params["batch_size"] if params else 4
    rows = tf.data.Dataset.from_tensors(np.float32([1, 2, 3])).repeat(32)
    return rows.batch(size, drop_remainder=True)


NAMES = ["encoder/weight", "encoder/LayerNorm/beta", "encoder/LayerNorm/gamma"]
SLOTS = [
    "encoder/weight/Adam",
    "encoder/weight/Adam_1",
    "beta1_power",
    "encoder/LayerNorm/beta/Momentum",
]


def _told(caught) -> list[str]:
    return [line for line in caught if "initialized from the checkpoint" in line]


def _train(
    caplog, folder, *, checkpoint=None, mapped=None, norm_scope=None, warm_start_from=None, cores=0
):
    """Trains a step with Adam; returns the lines on checkpoints."""

    def model_fn(features, labels=None, mode=None, params=None):
        del labels, params
        loss = tf.reduce_mean(tf.square(_outputs(features, norm_scope=norm_scope) - 1.0))
        optimizer = v1.train.AdamOptimizer()

        def scaffold():
            v1.train.init_from_checkpoint(checkpoint, mapped)
            return v1.train.Scaffold()

        step = v1.train.get_global_step()
        if cores:
            train_op = tpu.CrossShardOptimizer(optimizer).minimize(loss, step)
            return tpu.TPUEstimatorSpec(
                mode, loss=loss, train_op=train_op, scaffold_fn=scaffold if checkpoint else None
            )
        if checkpoint:
            v1.train.init_from_checkpoint(checkpoint, mapped)
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    if cores:
        config = tpu.RunConfig(
            master="emulated", model_dir=str(folder), tpu_config=tpu.TPUConfig(num_shards=cores)
        )
        estimator = tpu.TPUEstimator(
            model_fn, config=config, train_batch_size=8, warm_start_from=warm_start_from
        )
    else:
        estimator = Estimator(model_fn, model_dir=folder, warm_start_from=warm_start_from)
    caplog.clear()
    with log_lines(caplog) as caught:
        estimator.train(_input_fn if cores else functools.partial(_input_fn, None), steps=1)
    return _told(caught)


@pytest.mark.parametrize("cores", [0, 2])
def test_variables_without_a_counterpart_are_told_once_on_both_sides(caplog, tmp_path, cores):
    checkpoint = _save(tmp_path / "old", [*NAMES, *SLOTS, "cls/bias"])
    (line,) = _train(
        caplog,
        tmp_path / "new",
        checkpoint=checkpoint,
        mapped={"encoder/weight": "encoder/weight"},
        norm_scope="Norm",
        cores=cores,
    )
    assert line == (
        f"Variables initialized from the checkpoint {checkpoint}: 1. 2 of the model's 3 are not: "
        "encoder/Norm/beta, encoder/Norm/gamma. 3 of the checkpoint's 4 are not used: cls/bias, "
        "encoder/LayerNorm/beta, encoder/LayerNorm/gamma."
    )


def test_nothing_is_told_where_all_variables_match(caplog, tmp_path):
    checkpoint = _save(tmp_path / "old", [*NAMES, *SLOTS])
    assert _train(caplog, tmp_path / "new", checkpoint=checkpoint, mapped={"/": "/"}) == []
    assert _train(caplog, tmp_path / "warm", warm_start_from=checkpoint) == []
    assert _train(caplog, tmp_path / "cold") == []


def test_warm_start_tells_what_it_leaves(caplog, tmp_path):
    checkpoint = _save(tmp_path / "old", [*NAMES, *(f"more/{number}" for number in range(9))])
    (line,) = _train(
        caplog, tmp_path / "new", warm_start_from=WarmStartSettings(checkpoint, ".*weight")
    )
    assert f"{checkpoint}: 1. " in line
    assert "2 of the model's 3 are not: encoder/LayerNorm/beta, encoder/LayerNorm/gamma." in line
    assert "11 of the checkpoint's 12 are not used: encoder/LayerNorm/beta" in line
    assert line.endswith("more/0, more/1, more/2 and 6 more.")


def test_a_resumed_training_does_not_tell_it_again(caplog, tmp_path):
    checkpoint = _save(tmp_path / "old", NAMES)
    train = functools.partial(
        _train, caplog, tmp_path / "new", warm_start_from=WarmStartSettings(checkpoint, ".*weight")
    )
    assert len(train()) == 1
    assert train() == []

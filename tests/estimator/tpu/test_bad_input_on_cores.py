"""What goes wrong on cores in another way than on the host."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.places import estimator
from tests.estimator.test_bad_input import reckons_with_full_batches
from tests.estimator.tpu import cores

v1 = tf.compat.v1


def test_input_fn_calls_that_differ_are_refused_by_key(tmp_path):
    def input_fn(params):
        features = {"x": tf.zeros([4, 3])}
        if params["context"].current_input_fn_deployment()[1]:
            features["only_here"] = tf.zeros([4])
        return features, tf.zeros([4])

    options = {"per_host_input_for_training": cores.PER_SHARD_V1}
    with pytest.raises(ValueError, match=r"features\['only_here'\] is in only one of them"):
        cores.run(cores.linear(tmp_path, tpu_options=options), "train", input_fn)

    def other_shape(params):
        width = 3 + params["context"].current_input_fn_deployment()[1]
        return {"x": tf.zeros([4, width])}, tf.zeros([4])

    says = r"features\['x'\] is float32 \(4, 3\) in one and float32 \(4, 4\) in another"
    with pytest.raises(ValueError, match=says):
        cores.run(cores.linear(tmp_path, tpu_options=options), "train", other_shape)


def test_a_batch_size_built_into_the_model_fails_on_a_short_batch_of_cores(tmp_path):
    built_in = estimator(tmp_path, "cores", reckons_with_full_batches)
    says = (
        r"^The last batch has fewer rows than eval_batch_size and runs as one short last batch, but "
        r"model_fn assumes another number of rows, at 'Reshape' \(.* 18 values.*12\)\. Use "
        r".*params\['batch_size'\], or .*drop_remainder=True"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        built_in.evaluate(lambda params: linear_model.input_fn(params, count=22))


def test_a_short_batch_that_fits_by_chance_counts_its_own_rows(tmp_path):
    results = [
        estimator(tmp_path / name, "cores", model_fn).evaluate(linear_model.input_fn)
        for name, model_fn in (("built_in", reckons_with_full_batches), ("plain", None))
    ]
    assert results[0] == pytest.approx(results[1])


def _poisoned(params):
    rows, labels = linear_model.rows(6 * cores.BATCH)
    labels[4 * cores.BATCH] = np.nan
    dataset = tf.data.Dataset.from_tensor_slices(({"x": rows}, labels))
    return dataset.batch(params["batch_size"], drop_remainder=True)


NAN_ON_HOST = "^NaN loss during training, at global step 5; "
NAN_ON_CORES = (
    r"^Gradient for linear/\w+ is NaN: training stopped in the steps that ended at global step 6; "
)


@pytest.mark.parametrize(("place", "says"), [("host", NAN_ON_HOST), ("cores", NAN_ON_CORES)])
@pytest.mark.behaviour(174, 175)
def test_a_nan_names_the_step_and_the_checkpoint_that_is_kept(tmp_path, place, says):
    poisoned = estimator(tmp_path, place, save_checkpoints_steps=2)
    error = (
        v1.train.NanLossDuringTrainingError if place == "host" else tf.errors.InvalidArgumentError
    )
    with pytest.raises(error, match=f"{says}the last checkpoint is {tmp_path}/model.ckpt-4\\. "):
        poisoned.train(_poisoned, steps=6)
    assert all(
        np.isfinite(value).all()
        for value in poisoned.get_variable_value(poisoned.get_variable_names())
    )
    poisoned.train(cores.train_input_fn, max_steps=6)
    assert poisoned.get_variable_value("global_step") == 6

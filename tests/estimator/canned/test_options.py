"""Options of canned estimators that need no recording: what they do follows from their words."""

import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.canned.canned_runs import input_fn_of
from tests.listings import DOCS, run_listings
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as ours

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1
fc = tf.feature_column


def values_of(estimator: Any) -> dict[str, np.ndarray]:
    """Every variable of the latest checkpoint."""
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def pair() -> list[Any]:
    """One column of two numbers."""
    return [fc.numeric_column("pair", 2)]


def trained(estimator: Any, label: str = "target", steps: int = 3) -> dict[str, np.ndarray]:
    """The variables after some steps on the table."""
    estimator.train(input_fn_of(label, epochs=None, names=["pair"]), steps=steps)
    return values_of(estimator)


def test_a_public_head_on_v1_logits_trains_as_on_v2_logits(tmp_path):
    # Gradient descent has no slots, and a linear model begins with zeros.
    of_v2 = ours.LinearEstimator(
        ours.RegressionHead(), pair(), str(tmp_path / "v2"), tf.keras.optimizers.legacy.SGD(0.1)
    )
    of_v1 = ours.v1.LinearEstimator(
        ours.RegressionHead(),
        pair(),
        str(tmp_path / "v1"),
        lambda: v1.train.GradientDescentOptimizer(0.1),
    )
    expected, found = trained(of_v2), trained(of_v1)
    name = "linear/linear_model/pair/weights"
    assert np.abs(found[name]).max() > 0.01
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


class _ReadingItsCount(tf.keras.optimizers.legacy.SGD):
    """Twice the gradients, and `iterations` is read as soon as anyone asks for the weights."""

    @property
    def weights(self):
        return [self.iterations, *super().weights]

    def get_updates(self, loss, params):
        return super().get_updates(2.0 * loss, params)


def _spec_of_a_head(features, labels, mode):
    w = v1.get_variable("w", [1, 1], initializer=v1.zeros_initializer())
    return ours.RegressionHead().create_estimator_spec(
        {}, mode, features["x"] @ w, labels, _ReadingItsCount(0.1), trainable_variables=[w]
    )


_SETTINGS = {f"training/SGD/{name}" for name in ("decay", "learning_rate", "momentum")}
_DEEP = {
    f"dnn/{layer}/{part}" for layer in ("hiddenlayer_0", "logits") for part in ("bias", "kernel")
}
_WIDE = {"linear/linear_model/bias_weights", "linear/linear_model/x/weights"}
# What TensorFlow 2.15's estimator saved after two steps, and a value that no random number is in;
# its head's model_fn sets `iterations` itself.
_SAVED = {
    "baseline": (
        lambda made, _: ours.BaselineRegressor(optimizer=made),
        {"baseline/bias", *_SETTINGS},
        {"baseline/bias": 0.96},
    ),
    "linear": (
        lambda made, columns: ours.LinearRegressor(columns, optimizer=made),
        {*_WIDE, *_SETTINGS},
        {"linear/linear_model/bias_weights": 0.36, "linear/linear_model/x/weights": 0.64},
    ),
    "dnn": (
        lambda made, columns: ours.DNNRegressor([2], columns, optimizer=made),
        {*_DEEP, *_SETTINGS},
        {},
    ),
    # The second optimizer has its own count.
    "combined": (
        lambda made, columns: ours.DNNLinearCombinedRegressor(
            linear_feature_columns=columns,
            linear_optimizer=made,
            dnn_feature_columns=columns,
            dnn_optimizer=made,
            dnn_hidden_units=[2],
        ),
        {
            *_DEEP,
            *_WIDE,
            *_SETTINGS,
            "training/SGD_1/iter",
            *(name.replace("SGD", "SGD_1") for name in _SETTINGS),
        },
        {"training/SGD_1/iter": 2},
    ),
    "head": (lambda *_: ours.Estimator(_spec_of_a_head), {"w", *_SETTINGS}, {"w": 1.0}),
}


# All train through the heads' `minimize`; these two differ most in how they come to it.
@mostly_swept("kind", _SAVED, kept=["combined", "head"])
def test_an_optimizer_that_reads_its_count_resumes_the_originals_checkpoint(kind):
    make, saved, values = _SAVED[kind]
    estimator = make(lambda: _ReadingItsCount(0.1), [fc.numeric_column("x")])

    def input_fn():
        rows = np.float32([[1], [2]])
        return tf.data.Dataset.from_tensors(({"x": rows}, rows)).repeat()

    estimator.train(input_fn, steps=1)
    estimator.train(input_fn, steps=1)
    found = values_of(estimator)
    assert set(found) == {"global_step", *saved}
    assert found["global_step"] == 2
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def test_an_optimizer_instance_trains_again_and_stays_as_it_was(tmp_path):
    optimizer = tf.keras.optimizers.legacy.Adam(0.05)
    estimator = ours.LinearRegressor(pair(), str(tmp_path / "twice"), optimizer=optimizer)
    trained(estimator)
    twice = trained(estimator)
    assert not optimizer.weights
    other = ours.LinearRegressor(pair(), str(tmp_path / "once"), optimizer=lambda: optimizer)
    once = trained(other, steps=6)
    assert twice["global_step"] == once["global_step"] == 6
    # The second training begins at the table's first row again.
    assert sorted(twice) == sorted(once)


# TF 2.15.1, seed 7, after train(steps=3) and once more train(steps=2): a step counts two, so 2 steps each time.
_SHARED = {
    4: {
        "dnn/hiddenlayer_0/kernel": [[0.7439195, -1.2259675]],
        "dnn/logits/kernel": [[-0.16146848], [1.1505498]],
        "dnn/logits/bias": [-0.05328766],
        "linear/linear_model/x/weights": [[-0.02924257]],
        "training/Adam_1/linear/linear_model/x/weights/m": [[-0.02261065]],
    },
    8: {
        "dnn/hiddenlayer_0/kernel": [[0.71205699, -1.20295894]],
        "dnn/logits/kernel": [[-0.17520858], [1.11615622]],
        "dnn/logits/bias": [-0.07367066],
        "linear/linear_model/x/weights": [[-0.00016875]],
        "training/Adam_1/linear/linear_model/x/weights/m": [[-0.04246809]],
    },
}


@mostly_swept("given", ["object", "function"], kept=["object"])
def test_one_optimizer_of_both_halves_counts_and_resumes_as_in_the_original(tmp_path, given):
    def input_fn():
        x = np.arange(8, dtype=np.float32) / 8
        rows = ({"x": x}, (x > 0.4).astype(np.int64))
        return tf.data.Dataset.from_tensor_slices(rows).batch(4).repeat()

    for steps, (counted, expected) in zip([3, 2], _SHARED.items()):
        optimizer = tf.keras.optimizers.legacy.Adam(0.05)
        halves = [optimizer] * 2
        if given == "function":
            halves = [lambda made=optimizer: made for _ in halves]
        estimator = ours.DNNLinearCombinedClassifier(
            model_dir=str(tmp_path),
            linear_feature_columns=[fc.numeric_column("x")],
            linear_optimizer=halves[0],
            dnn_feature_columns=[fc.numeric_column("x")],
            dnn_optimizer=halves[1],
            dnn_hidden_units=[2],
            dnn_activation_fn=tf.nn.sigmoid,
            config=ours.RunConfig(tf_random_seed=7),
        )
        estimator.train(input_fn, steps=steps)
        found = values_of(estimator)
        assert found["global_step"] == counted
        # One object has one set of settings, and no count of its own.
        own = {"beta_1", "beta_2", "decay", "learning_rate", "iter"}
        assert not own & {name.removeprefix("training/Adam_1/") for name in found}
        # A half reads the count, updates its variables and then raises the count. Whether the other half has read
        # it by then is a race, here as in the original. It moved the kernel by 5e-4 once; a step moves it by 2e-2.
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=2e-3, err_msg=name)
    # It ends at the first step that is 41 further on, as there: many steps run ahead of it.
    assert estimator.train(input_fn, steps=41).get_variable_value("global_step") == 8 + 42


def test_v1_training_goes_on_from_a_checkpoint_with_slots_of_parts(tmp_path):
    estimator = ours.v1.DNNRegressor([3], pair(), str(tmp_path))
    before = trained(estimator)
    after = trained(estimator)
    assert after["global_step"] == 6
    # Its name is what TensorFlow makes of the slot of a part; sums of squares only grow.
    name = "dnn/hiddenlayer_0/kernel/t_0/Adagrad"
    assert (after[name] >= before[name]).all()
    assert (after[name] > before[name]).any()


def test_warm_start_takes_what_another_estimator_learned(tmp_path):
    first = ours.DNNRegressor([3], pair(), str(tmp_path / "first"))
    learned = trained(first)
    second = ours.DNNClassifier(
        [3],
        pair(),
        str(tmp_path / "second"),
        warm_start_from=ours.WarmStartSettings(
            first.model_dir, vars_to_warm_start="dnn/hiddenlayer_0/.*"
        ),
        optimizer=tf.keras.optimizers.legacy.SGD(0.0),
    )
    name = "dnn/hiddenlayer_0/kernel"
    np.testing.assert_array_equal(trained(second, "binary")[name], learned[name])


@pytest.mark.parametrize(
    "api", [ours, pytest.param(ours.v1, marks=pytest.mark.sweep)], ids=["v2", "v1"]
)
def test_dropout_is_for_training_only(api, tmp_path):
    estimator = api.DNNRegressor([64], pair(), str(tmp_path), dropout=0.9, activation_fn="tanh")
    trained(estimator, steps=1)
    input_fn = input_fn_of("target", epochs=1, names=["pair"])
    first, second = ([row["predictions"] for row in estimator.predict(input_fn)] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_partitioner_cuts_variables_and_checkpoints_do_not_show_it(tmp_path):
    town = fc.categorical_column_with_identity("town", 10)

    def input_fn():
        rows = ({"town": [[1], [7]]}, [1.0, 2.0])
        return tf.data.Dataset.from_tensors(rows).repeat()

    def estimator(partitioner: Any) -> Any:
        return ours.v1.LinearRegressor([town], str(tmp_path), partitioner=partitioner)

    parts = []

    class Count(v1.train.SessionRunHook):
        """Sees how many parts there are."""

        def begin(self):
            scope = "linear/linear_model/town/weights"
            parts.append(len(v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope)))

    estimator(v1.fixed_size_partitioner(2)).train(input_fn, steps=2, hooks=[Count()])
    whole = estimator(None)
    cut = whole.get_variable_value("linear/linear_model/town/weights")
    assert parts == [2]
    assert cut.shape == (10, 1)
    assert (np.flatnonzero(cut) == [1, 7]).all()
    metrics = whole.evaluate(input_fn, steps=1)
    np.testing.assert_allclose(metrics["label/mean"], 1.5)


def test_logit_functions_serve_a_model_fn_of_ones_own(tmp_path):
    experimental = ours.v1.experimental
    wide = experimental.linear_logit_fn_builder(2, pair())
    deep = experimental.dnn_logit_fn_builder(2, [3], pair(), tf.nn.relu, None, None, True)

    def model_fn(features, labels, mode, config):
        logits = [
            experimental.call_logit_fn(each, features, mode, None, config) for each in (wide, deep)
        ]
        return ours.RegressionHead(2).create_estimator_spec(
            features, mode, tf.add_n(logits), labels, "SGD", v1.trainable_variables()
        )

    found = trained(ours.Estimator(model_fn, str(tmp_path)), "targets")
    assert {
        "linear_model/pair/weights",
        "linear_model/bias_weights",
        "hiddenlayer_0/kernel",
        "hiddenlayer_0/batchnorm_0/moving_mean",
        "logits/bias",
    } <= set(found)
    with pytest.raises(ValueError, match=r"units must be an int.*'2'"):
        experimental.dnn_logit_fn_builder("2", [3], pair(), None, None, None, False)
    for wrong in (7, {"a": 7}, {7: tf.constant(1.0)}, [tf.constant(1.0)]):
        with pytest.raises(ValueError, match=r"mapping strings to Tensors.  logit_fn returned: "):
            experimental.call_logit_fn(lambda features, given=wrong: given, {}, "train", None, None)


@mostly_swept("name", ["linear", "dnn", "baseline"], kept=["dnn"])
def test_a_v1_estimators_optimizer_needs_no_var_list(tmp_path, name):
    class Plain(v1.train.GradientDescentOptimizer):
        def minimize(self, loss, global_step=None):
            return super().minimize(loss, global_step=global_step)

    makers = {
        "linear": lambda **given: ours.v1.LinearRegressor(pair(), label_dimension=2, **given),
        "dnn": lambda **given: ours.v1.DNNRegressor([3], pair(), label_dimension=2, **given),
        "baseline": lambda **given: ours.v1.BaselineRegressor(label_dimension=2, **given),
    }
    model = makers[name](model_dir=str(tmp_path), optimizer=Plain(0.01))
    assert trained(model, "targets")["global_step"] > 0


def test_the_listings_of_the_docs_page_run(tmp_path, monkeypatch):
    # They name no folder for their model.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = run_listings(DOCS / "canned.md")
    assert names["metrics"]["global_step"] == 32
    assert names["metrics_of_cores"]["global_step"] == 42
    assert set(names["metrics"]) == set(names["metrics_of_cores"])

"""Tests training with evaluations in between, on a model whose metric is set for each step."""

from __future__ import annotations

import collections
import functools
import glob
import os
import shutil
import signal

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator._engine.event_files import read_values
from tfx_tpu_trainer.components.evaluation._learning_curve import Goal, read_learning_curve
from tfx_tpu_trainer.components.trainer.early_stopping import EvaluatedTraining
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator.extending import OpenEvaluation, StoppedBySignal

v1 = tf.compat.v1

# Quality of the model by its global step.
QUALITY = {2: 0.3, 4: 0.8, 6: 0.5, 8: 0.7}
MAX = Goal(metric="quality")


pytestmark = pytest.mark.matrix


def make_model_fn(quality):
    steps, values = list(quality.keys()), list(quality.values())

    def metric_fn(rows):
        step = v1.train.get_global_step()
        known = tf.equal(tf.constant(steps, tf.int64), step)
        value = tf.reduce_sum(tf.where(known, tf.constant(values), tf.zeros(len(values))))
        return {"quality": v1.metrics.mean(tf.zeros_like(rows) + value)}

    def model_fn(features, labels, mode, params):
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(features["x"]) * weight
        step = v1.train.get_global_step()
        with tf.control_dependencies([loss]):
            train_op = tf.group(weight.assign_add(1.0), step.assign_add(1))
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metrics=(metric_fn, [features["x"]])
        )

    return model_fn


def rows(params, repeat=None):
    return tf.data.Dataset.from_tensors({"x": tf.ones([4])}).repeat(repeat)


class Interrupted(OpenEvaluation):
    """An evaluation that is interrupted, once, as it begins for the n-th time."""

    def __init__(self, *args, nth, interrupt, **options):
        super().__init__(*args, **options)
        self._left = nth
        self._interrupt = interrupt

    def evaluate(self, *args, **options):
        self._left -= 1
        if not self._left:
            self._interrupt()
        return super().evaluate(*args, **options)


def training(
    folder,
    *,
    quality=QUALITY,
    goal=MAX,
    input_fn=rows,
    evaluation=OpenEvaluation,
    eval_input_fn=None,
    **options,
):
    def estimator_at(step):
        config = tpu.RunConfig(model_dir=str(folder), keep_checkpoint_max=2)
        return tpu.TPUEstimator(make_model_fn(quality), config=config, use_tpu=False)

    settings = {
        "estimator_at": estimator_at,
        "max_steps": 8,
        "every_steps": 2,
        "every_secs": None,
        "keeps_session": True,
        **options,
    }
    eval_input_fn = eval_input_fn or functools.partial(rows, repeat=1)
    return EvaluatedTraining(
        train_input_fn=input_fn,
        evaluation=evaluation(settings["estimator_at"](0), eval_input_fn, keeps_session=True),
        goal=goal,
        **settings,
    )


def weight(checkpoint):
    return tf.train.load_variable(checkpoint, "weight")


def values(curve):
    return {point.step: round(point.metrics.overall["quality"], 3) for point in curve.points}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a whole training that found a half-made copy of a checkpoint there, itself, and its curve."""
    folder = tmp_path_factory.mktemp("finished")
    os.makedirs(folder / "best" / "half")
    run = training(folder)
    return folder, run, run.run()


def test_the_curve_and_the_best(finished):
    folder, run, curve = finished
    assert values(curve) == QUALITY
    assert curve.best.step == 4
    # The two last checkpoints are kept, and the best one, which is neither.
    assert not glob.glob(str(folder / "model.ckpt-4*"))
    assert run.chosen_checkpoint(curve) == str(folder / curve.best_checkpoint)
    assert weight(run.chosen_checkpoint(curve)) == 4
    assert len(os.listdir(folder / "best")) == 1
    assert repr(read_learning_curve(str(folder))) == repr(curve)
    # TensorBoard's view of the same.
    events = read_values(folder / "eval")["quality"]
    assert {step: round(value, 3) for step, value in events.items()} == QUALITY


def test_a_copy_that_was_not_finished_is_no_best(finished):
    folder, _, curve = finished
    assert os.listdir(folder / "best") == [curve.best_checkpoint.split("/")[1]]


def test_without_a_goal_the_last_one_is_chosen(tmp_path):
    run = training(tmp_path, goal=None, max_steps=5)
    curve = run.run()
    assert list(values(curve)) == [2, 4, 5]
    assert weight(run.chosen_checkpoint(curve)) == 5
    assert not os.path.exists(tmp_path / "best")


@pytest.mark.sweep
def test_lower_can_be_better(tmp_path):
    curve = training(tmp_path, goal=Goal(metric="quality", mode="min")).run()
    assert curve.best.step == 2


def test_early_stop(tmp_path):
    goal = Goal(metric="quality", patience=1)
    curve = training(tmp_path, goal=goal).run()
    assert list(values(curve)) == [2, 4, 6]
    assert curve.stops
    # Started again, it does not continue.
    assert list(values(training(tmp_path, goal=goal).run())) == [2, 4, 6]


class TrainedModel:
    """A training of a model whose next step depends on all before: shuffled rows, dropout, Adam's moments."""

    def __init__(self, folder, *, keeps_session, evaluation=OpenEvaluation, **options):
        self.calls = collections.Counter()
        self._options = options
        self._run = training(
            folder,
            goal=Goal(metric="error", mode="min"),
            estimator_at=lambda step: self._estimator(str(folder)),
            input_fn=self._rows,
            evaluation=evaluation,
            eval_input_fn=self._eval_rows,
            every_steps=10,
            max_steps=35,
            keeps_session=keeps_session,
        )

    def run(self):
        """Returns the metrics by step, and the last checkpoint's variables."""
        curve = self._run.run()
        reader = tf.train.load_checkpoint(
            self._run.last_saved.path(self._run.estimator_at(0).model_dir)
        )
        names = sorted(reader.get_variable_to_shape_map())
        metrics = {point.step: dict(point.metrics.overall) for point in curve.points}
        return metrics, {name: reader.get_tensor(name).tolist() for name in names}

    def _estimator(self, folder):
        config = tpu.RunConfig(
            model_dir=folder,
            tf_random_seed=3,
            save_checkpoints_steps=7,
            master="emulated" if self._options else None,
            tpu_config=tpu.TPUConfig(num_shards=2, iterations_per_loop=4),
        )
        return tpu.TPUEstimator(
            self._model_fn,
            config=config.replace(save_input_position=True),
            train_batch_size=8,
            eval_batch_size=8,
            use_tpu=bool(self._options),
        )

    def _model_fn(self, features, labels, mode, params):
        self.calls[mode] += 1
        inputs = features["x"]
        if mode == "train":
            inputs = v1.nn.dropout(inputs, rate=0.2)
        kernel = v1.get_variable("kernel", [3, 1])
        error = tf.square(inputs @ kernel - 1.0)
        optimizer = v1.train.AdamOptimizer(0.1)
        if params["use_tpu"]:
            optimizer = tpu.CrossShardOptimizer(optimizer)
        loss = tf.reduce_mean(error)
        train_op = optimizer.minimize(loss, v1.train.get_global_step()) if mode == "train" else None
        metrics = (lambda error: {"error": v1.metrics.mean(error)}, [error])
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, eval_metrics=metrics)

    def _rows(self, params):
        x = tf.random.stateless_normal([40, 3], seed=[1, 2])
        rows = tf.data.Dataset.from_tensor_slices({"x": x}).shuffle(40).repeat()
        return rows.batch(params["batch_size"], drop_remainder=True)

    def _eval_rows(self, params):
        x = tf.random.stateless_normal([16, 3], seed=[3, 4])
        return tf.data.Dataset.from_tensors({"x": x}).unbatch().batch(params["batch_size"])


@pytest.mark.parametrize("options", [{}, {"use_tpu": True}])
def test_one_session_makes_the_model_of_many(tmp_path, options):
    one = TrainedModel(tmp_path / "one", keeps_session=True, **options)
    # A hook of a user's may change its graph, so each evaluation has its own.
    traced = functools.partial(OpenEvaluation, hooks=[v1.train.SessionRunHook()])
    many = TrainedModel(tmp_path / "many", keeps_session=False, evaluation=traced, **options)
    metrics, variables = one.run()
    assert (metrics, variables) == many.run()
    assert list(metrics) == [10, 20, 30, 35]
    assert one.calls == {"train": 1, "eval": 1} and many.calls == {"train": 4, "eval": 4}
    # A signal in an evaluation ends it at once, and the next attempt makes it first.
    stop = functools.partial(signal.raise_signal, signal.SIGTERM)
    signalled = functools.partial(Interrupted, nth=2, interrupt=stop)
    with pytest.raises(StoppedBySignal):
        TrainedModel(tmp_path / "cut", keeps_session=True, evaluation=signalled, **options).run()
    assert list(read_learning_curve(str(tmp_path / "cut")).points)[-1].step == 10
    assert checkpoints.global_step_of(str(tmp_path / "cut")) == 20
    resumed = TrainedModel(tmp_path / "cut", keeps_session=True, **options)
    assert resumed.run() == (metrics, variables)


def test_killed_anywhere_it_stops_at_the_same_step(tmp_path):
    quality = {2: 0.3, 4: 0.8, 6: 0.5, 8: 0.7, 10: 0.1}
    goal = Goal(metric="quality", patience=2)

    def attempt(*, killed_at=None, killed_in_evaluation=False):
        def train_input_fn(params):
            made = checkpoints.global_step_of(str(tmp_path))
            return rows(params, killed_at - made).concatenate(_broken(params))

        def eval_input_fn(params):
            if killed_in_evaluation:
                raise InterruptedError
            return rows(params, 1)

        inputs = {"eval_input_fn": eval_input_fn}
        if killed_at:
            inputs["input_fn"] = train_input_fn
        return training(tmp_path, quality=quality, goal=goal, max_steps=10, **inputs).run()

    with pytest.raises(tf.errors.InvalidArgumentError):
        attempt(killed_at=3)
    for _ in range(2):
        with pytest.raises(InterruptedError):
            attempt(killed_in_evaluation=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        attempt(killed_at=7)
    curve = attempt()
    assert values(curve) == {step: quality[step] for step in (2, 4, 6, 8)}
    assert curve.stops and checkpoints.global_step_of(str(tmp_path)) == 8


def _broken(params):
    return rows(params).map(lambda row: {"x": tf.debugging.check_numerics(row["x"] / 0, "broken")})


def test_by_time(tmp_path):
    goal = Goal(metric="quality", patience=1)
    curve = training(tmp_path, every_steps=None, every_secs=1, max_steps=10**9, goal=goal).run()
    # Nothing is better than the first evaluation, at a step that no one knows: two in all.
    first, second = values(curve)
    assert 0 < first < second


def test_input_that_ends(tmp_path):
    curve = training(tmp_path, input_fn=functools.partial(rows, repeat=1)).run()
    assert list(values(curve)) == [1]


@pytest.fixture(scope="module")
def interrupted_folder(tmp_path_factory):
    """A training that ended with an error in its third evaluation."""

    def interrupt():
        raise InterruptedError("power is off")

    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(InterruptedError):
        training(
            folder, evaluation=functools.partial(Interrupted, nth=3, interrupt=interrupt)
        ).run()
    return folder


@pytest.fixture
def interrupted(tmp_path, interrupted_folder):
    """A copy of it in the test's own folder."""
    shutil.copytree(interrupted_folder, tmp_path, dirs_exist_ok=True)


def test_another_attempts_curve_and_best_checkpoint_are_not_written_over(tmp_path):
    # The other one has taken the folder when this one has its next evaluation.
    training(tmp_path, max_steps=4).run()
    before = {path: path.read_bytes() for path in sorted(tmp_path.glob("best/*/*"))}
    curve = (tmp_path / "learning_curve.json").read_bytes()

    def taken():
        raise RuntimeError("taken")

    with pytest.raises(RuntimeError, match="taken"):
        training(tmp_path, before_writing=taken).run()
    assert {path: path.read_bytes() for path in sorted(tmp_path.glob("best/*/*"))} == before
    assert (tmp_path / "learning_curve.json").read_bytes() == curve


@pytest.mark.usefixtures("interrupted")
class TestRestart:
    @row(
        "eval_metrics",
        "a `learning_curve.json` of an attempt, cut off: the next attempt continues without it",
        "learning_curve.json can't be read: ",
        "It was renamed to",
        "and the learning curve starts from scratch",
    )
    def test_a_damaged_curve_is_set_aside(self, tmp_path, caplog, refused):
        (tmp_path / "learning_curve.json").write_text('{"version": 1, "points"')
        curve = training(tmp_path).run()
        # From the checkpoint of step 6, which no curve knows any more.
        assert values(curve) == {6: QUALITY[6], 8: QUALITY[8]}
        (aside,) = tmp_path.glob("learning_curve.json.aside-*")
        assert aside.read_text() == '{"version": 1, "points"'
        assert (
            f"It was renamed to {aside}, and the learning curve starts from scratch." in caplog.text
        )
        refused.log(caplog.text)

    def test_goes_on_where_it_stood(self, tmp_path):
        assert values(read_learning_curve(str(tmp_path))) == {2: 0.3, 4: 0.8}
        # Trained to 6, not evaluated there: that comes first.
        run = training(tmp_path)
        curve = run.run()
        assert values(curve) == QUALITY
        assert weight(run.chosen_checkpoint(curve)) == 4

    def test_never_a_worse_model(self, tmp_path):
        # From here on, all is worse; the best step itself, trained again, would be worse, too.
        for path in [*glob.glob(str(tmp_path / "model.ckpt*")), str(tmp_path / "checkpoint")]:
            os.remove(path)
        run = training(tmp_path, quality={2: 0.1, 4: 0.2, 6: 0.3, 8: 0.4})
        curve = run.run()
        assert curve.best.step == 4
        assert round(curve.best.metrics.overall["quality"], 3) == 0.8
        assert weight(run.chosen_checkpoint(curve)) == 4
        assert len(os.listdir(tmp_path / "best")) == 1

    def test_a_better_one_replaces_it(self, tmp_path):
        curve = training(tmp_path, quality={**QUALITY, 8: 0.9}).run()
        assert curve.best.step == 8


@row(
    "eval_metrics",
    "a `best_metric` that the evaluation does not give",
    "best_metric='auc' is not among the model's metrics (loss, loss_by_rows, quality): return it from metric_fn",
)
def test_unknown_metric(tmp_path, refused):
    with refused(ValueError):
        training(tmp_path, goal=Goal(metric="auc")).run()

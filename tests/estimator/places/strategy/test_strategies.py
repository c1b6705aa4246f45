"""Every strategy that RunConfig takes: trained by the formula, evaluated and predicted as on the host."""

import gc
import logging
import pathlib
import re
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.places.strategy import strategy_runs as runs
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

_FIRST = ("mirrored", "parameter_server")
_OTHERS = ("multi_worker_mirrored", "central_storage", "mirrored_v1", "one_device", "default")
every_strategy = runs.cases("name", *_FIRST, swept=_OTHERS)


def _strategy(name: str) -> tuple[tf.distribute.Strategy, int]:
    make, replicas = runs.STRATEGIES[name]
    return make(), replicas


@every_strategy
def test_train_evaluate_predict_and_export(tmp_path, name):
    strategy, replicas = _strategy(name)
    trained = runs.make(tmp_path, strategy)
    trained.train(runs.train_input_of(on_cores.BATCH // replicas), steps=3)
    on_cores.assert_descended(trained, 3)
    assert trained.get_variable_value("global_step") == 3

    # Seven batches, the last one of two rows: every row counts, and every batch in the loss.
    host = runs.make(tmp_path)
    metrics = trained.evaluate(runs.eval_input_of(3))
    assert metrics == pytest.approx(host.evaluate(runs.eval_input_of(3)), rel=1e-5)
    # Steps are of all replicas.
    two_steps = trained.evaluate(runs.eval_input_of(2), steps=2)
    assert two_steps == pytest.approx(
        host.evaluate(runs.eval_input_of(2), steps=2 * replicas), rel=1e-5
    )

    features, _ = linear_model.rows()
    _, weights, bias = on_cores.descended(3)
    expected = linear_model.output(features, weights, bias)
    np.testing.assert_allclose(runs.predicted(trained), expected, rtol=1e-5)
    path = trained.export_saved_model(str(tmp_path / "export"), _receiver_fn)
    served = tf.saved_model.load(path.decode()).signatures["serving_default"]
    np.testing.assert_allclose(served(x=tf.constant(features))["y"], expected, rtol=1e-5)


def _receiver_fn() -> tfe.export.ServingInputReceiver:
    x = v1.placeholder(tf.float32, [None, 3])
    return tfe.export.ServingInputReceiver({"x": x}, {"x": x})


@runs.cases(
    "name", "mirrored", swept=("parameter_server", "central_storage", "one_device", "default")
)
def test_input_fn_is_called_once_with_its_context_and_sees_its_own_batches(tmp_path, name):
    strategy, replicas = _strategy(name)
    seen: list[Any] = []

    def input_fn(input_context=None):
        seen.append(input_context)
        return on_cores.train_input_fn({"batch_size": 2})

    def model_fn(features, labels, mode):
        seen.append(features["x"].shape[0])
        seen.append(tf.distribute.get_strategy().num_replicas_in_sync)
        return runs.model_fn_for()(features, labels, mode)

    runs.make(tmp_path, strategy, model_fn).train(input_fn, steps=2)
    context, rows, replicas_seen = seen
    # The dataset's batch is one replica's; nothing was split.
    assert (rows, replicas_seen) == (2, replicas)
    if name == "default":
        assert context is None
    else:
        assert context.num_replicas_in_sync == replicas
        assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    # A step took a batch for each replica.
    on_cores.assert_descended(runs.make(tmp_path), 2, batch=2 * replicas)


@runs.cases("name", "mirrored", swept=("central_storage",))
def test_training_goes_on_with_another_strategy_or_none(tmp_path, name):
    runs.make(tmp_path, _strategy(name)[0]).train(runs.train_input_of(), max_steps=2)
    # The input restarts with each call: both halves descend on the first batches.
    again = runs.make(tmp_path)
    before = again.get_variable_value("linear/weights"), again.get_variable_value("linear/bias")
    again.train(runs.train_input_of(on_cores.BATCH), max_steps=3)
    batch = linear_model.batches(on_cores.BATCH)[0]
    (_, weights, bias), *_ = linear_model.descend([batch], *before)
    np.testing.assert_allclose(again.get_variable_value("linear/weights"), weights, rtol=1e-5)
    np.testing.assert_allclose(again.get_variable_value("linear/bias"), bias, rtol=1e-5)


@runs.cases("name", "central_storage", swept=("mirrored",))
def test_slots_of_an_optimizer_are_those_of_one_device(tmp_path, name):
    def adam_step(loss):
        return v1.train.AdamOptimizer(0.05).minimize(loss, v1.train.get_global_step())

    one = runs.make(tmp_path / "one", model_fn=runs.model_fn_for(adam_step))
    one.train(runs.train_input_of(on_cores.BATCH), steps=3)
    several = runs.make(tmp_path / "all", _strategy(name)[0], runs.model_fn_for(adam_step))
    several.train(runs.train_input_of(), steps=3)
    names = one.get_variable_names()
    assert names == several.get_variable_names()
    assert "linear/weights/Adam_1" in names
    for each in names:
        np.testing.assert_allclose(
            several.get_variable_value(each),
            one.get_variable_value(each),
            rtol=1e-4,
            atol=1e-7,
            err_msg=each,
        )


def test_the_loss_that_is_shown_is_the_mean_over_the_replicas(tmp_path):
    losses = runs.Losses()
    runs.make(tmp_path, runs.mirrored()).train(runs.train_input_of(), hooks=[losses], steps=3)
    np.testing.assert_allclose(losses.seen, on_cores.descended(3)[0], rtol=1e-5)


@pytest.mark.parametrize("static", [pytest.param(True, marks=pytest.mark.sweep), False])
def test_training_ends_when_a_replica_finds_no_batch(tmp_path, static, caplog):
    def input_fn():
        # Five batches of four rows.
        features, labels = linear_model.rows()
        rows = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
        return rows.batch(runs.SHARE, drop_remainder=static)

    trained = runs.make(tmp_path, runs.mirrored())
    with log_lines(caplog):
        trained.train(input_fn)
    # The last batch would be one replica's only: TensorFlow gives the other no rows.
    assert trained.get_variable_value("global_step") == 2
    on_cores.assert_descended(trained, 2)


def test_nothing_of_a_strategy_outlives_its_calls(tmp_path, caplog):
    # A log record of the RunConfig would be kept for the report, and the strategy in it.
    caplog.set_level(logging.WARNING, logger="tensorflow")
    strategy = runs.mirrored()
    of_strategy = weakref.ref(strategy)
    estimator = runs.make(tmp_path, strategy)
    del strategy
    estimator.train(runs.train_input_of(), steps=1)
    estimator.evaluate(runs.eval_input_of(3))
    list(estimator.predict(runs.eval_input_of(3)))
    del estimator
    gc.collect()
    assert of_strategy() is None


def test_no_training_of_several_is_told_that_it_was_traced_again(tmp_path, caplog):
    for number in range(7):
        estimator = runs.make(tmp_path / str(number), runs.mirrored())
        estimator.train(runs.train_input_of(), steps=1)
        estimator.evaluate(runs.eval_input_of(3))
    assert "retracing" not in caplog.text


class _NotesStrategy(v1.train.SessionRunHook):
    """Notes in each of its callbacks which strategy is in scope, and makes a variable in `begin`."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self._name, self._notes = name, notes

    def _note(self, callback: str) -> None:
        in_scope = tf.distribute.get_strategy()
        self._notes.append((callback, in_scope, tf.distribute.in_cross_replica_context()))

    def begin(self):
        self._note("begin")
        variable = v1.get_variable(self._name, [], initializer=v1.ones_initializer())
        self._notes.append(("variable", type(variable).__name__))

    def after_create_session(self, session, coord):
        self._note("after_create_session")

    def before_run(self, run_context):
        self._note("before_run")

    def after_run(self, run_context, run_values):
        self._note("after_run")

    def end(self, session):
        self._note("end")


_CALLBACKS = ("begin", "after_create_session", "before_run", "after_run", "end")


# As in TF 2.15.1, in each of its callbacks.
@runs.cases("distributed", "both", swept=("train", "eval"))
def test_hooks_listeners_and_input_fns_run_in_the_scope_of_the_strategy(tmp_path, distributed):
    strategy, nobody = runs.mirrored(), tf.distribute.get_strategy()
    trains = strategy if distributed != "eval" else nobody
    evaluates = strategy if distributed != "train" else nobody
    fields = {
        f"{distributed}_distribute" if distributed != "both" else "train_distribute": strategy,
        "eval_distribute": strategy if distributed != "train" else None,
    }
    notes: dict[str, list[Any]] = {}

    def notes_of(name: str) -> list[Any]:
        return notes.setdefault(name, [])

    def input_of(name: str):
        def input_fn():
            _NotesStrategy("", notes_of(name))._note("input_fn")
            return runs.train_input_of(4)()

        return input_fn

    class Listener(v1.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            notes_of("listener").append(tf.distribute.get_strategy())

    def hook(name: str) -> _NotesStrategy:
        # What a training saves is also what later sessions can restore.
        return _NotesStrategy("noted", notes_of(name))

    def model_fn(features, labels, mode):
        hooks = {f"{of}_hooks": [hook(f"spec_{mode}")] for of in ("training", "evaluation")}
        return runs.model_fn_for(**hooks)(features, labels, mode)

    host = runs.make(tmp_path, model_fn=model_fn, **fields)
    host.train(input_of("train_input"), steps=1, saving_listeners=[Listener()])
    host.evaluate(input_of("eval_input"), steps=1)
    list(zip(host.predict(runs.eval_input_of(3), hooks=[hook("predict")]), range(1)))

    def expected(scope: tf.distribute.Strategy) -> list[Any]:
        kind = "ResourceVariable" if scope is nobody else "MirroredVariable"
        each = [(callback, scope, scope is not nobody) for callback in _CALLBACKS]
        return [each[0], ("variable", kind), *each[1:]]

    assert notes["spec_train"] == expected(trains)
    assert notes["spec_eval"] == expected(evaluates)
    assert notes["train_input"] == [("input_fn", trains, trains is strategy)]
    assert notes["eval_input"] == [("input_fn", evaluates, evaluates is strategy)]
    assert set(notes["listener"]) == {trains}
    assert notes["predict"][:4] == expected(nobody)[:4]


HERE = pathlib.Path(__file__).parent
PAGE = (HERE.parents[3] / "docs" / "strategies.md").read_text()
NAMED = re.findall(r"`(test_\w+)\.py::(test_\w+)(?:\[(\w+)\])?`", PAGE)


def test_every_test_that_the_page_names_is_there():
    assert len(NAMED) > 20
    for module, function, case in NAMED:
        source = (HERE / f"{module}.py").read_text()
        assert f"def {function}(" in source, (module, function)
        assert not case or f'"{case}"' in source + (HERE / "strategy_runs.py").read_text(), case


@pytest.mark.parametrize("column", [2, 3])
def test_every_strategy_of_the_table_names_its_test(column):
    table = PAGE.partition("## What works")[2].partition("\n##")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 11
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert re.search(r"`test_\w+\.py::", cells[-1]), row
        assert cells[column - 1], row


def test_the_program_of_the_page_learns(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
    names: dict = {}
    exec(compile(program, "strategies.md", "exec"), names)
    assert names["metrics"]["global_step"] == 20
    # Ten steps of two batches of two rows; y is 2 x + 1.
    assert names["metrics"]["label/mean"] == pytest.approx(1.9)
    assert names["metrics"]["average_loss"] < 0.2
    assert isinstance(names["strategy"], tf.distribute.MirroredStrategy)

"""A training that is killed and started again sees the rows that it would have seen."""

import glob
import logging
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator import counting_model
from tests.estimator.counting_model import BATCH, ROWS, KillAt, Killed, SeesEveryStep, shuffled
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, RunConfig, tpu
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator.inputs import numpy_input_fn

v1 = tf.compat.v1

STEPS = 33
ONCE, TWICE = (13,), (13, 27)


class _KillAtLoopEnd(KillAt, LoopEndHook):
    """Leaves the steps between checkpoints to the engine's loops."""


def _uninterrupted(folder, input_fn=shuffled, **options):
    return counting_model.estimator(folder, **options).train(input_fn, max_steps=STEPS)


def _killed_and_resumed(folder, input_fn=shuffled, *, kills=TWICE, kill=KillAt, **options):
    for step in kills:
        with pytest.raises(Killed):
            counting_model.estimator(folder, **options).train(
                input_fn, hooks=[kill(step)], max_steps=STEPS
            )
    return counting_model.estimator(folder, **options).train(input_fn, max_steps=STEPS)


def _same_if_killed(folder, input_fn=shuffled, *, kills=TWICE, kill=KillAt, **options):
    """Trains with and without kills; the models must be the same to the last bit. Gives the killed one's counts."""
    expected = _uninterrupted(folder / "expected", input_fn, **options)
    resumed = _killed_and_resumed(folder / "resumed", input_fn, kills=kills, kill=kill, **options)
    counting_model.assert_equal(resumed, expected)
    return resumed.get_variable_value("counts")


@pytest.mark.parametrize("kill", [_KillAtLoopEnd, pytest.param(KillAt, marks=pytest.mark.sweep)])
@mostly_swept("jit_compile", [None, False], kept=[None])
def test_a_killed_training_ends_with_the_same_model(tmp_path, kill, jit_compile):
    counts = _same_if_killed(tmp_path, kill=kill, config={"jit_compile": jit_compile})
    assert counts.sum() == STEPS * BATCH
    # 33 steps of 4 rows are 5.5 epochs of 24.
    assert set(counts) <= {5, 6}


class _LosesItsSession(LoopEndHook):
    """Has the session lost, once, at the end of the loop that reaches a step; notes where sessions start."""

    def __init__(self, step):
        self._step = step
        self.starts = []

    def after_create_session(self, session, coord):
        self.starts.append(int(session.run(v1.train.get_global_step())))

    def after_run(self, run_context, run_values):
        step = run_context.session.run(v1.train.get_global_step())
        if step >= self._step and len(self.starts) == 1:
            raise tf.errors.AbortedError(None, None, "lost")


def test_a_session_that_is_made_anew_goes_on_with_the_rows_that_come_next(tmp_path):
    options = {"config": {"log_step_count_steps": 5}}
    expected = _uninterrupted(tmp_path / "expected", **options)
    hook = _LosesItsSession(15)
    trained = counting_model.estimator(tmp_path / "lost", **options)
    trained.train(shuffled, hooks=[hook], max_steps=STEPS)
    assert hook.starts == [0, 10]
    counting_model.assert_equal(trained, expected)


@pytest.mark.sweep
def test_without_positions_rows_come_twice(tmp_path):
    config = {"save_input_position": False}
    resumed = _killed_and_resumed(tmp_path, config=config)
    assert set(resumed.get_variable_value("counts")) - {5, 6}
    assert not os.path.exists(tmp_path / "input_position")


def _once(params):
    return counting_model.with_batches(tf.data.Dataset.range(ROWS), params)


@pytest.mark.sweep
def test_evaluations_in_between_and_short_trainings_change_nothing(tmp_path):
    expected = _uninterrupted(tmp_path / "expected")
    resumed = counting_model.estimator(tmp_path / "resumed")
    for _ in range(3):
        resumed.train(shuffled, steps=STEPS // 3)
        resumed.evaluate(_once)
    counting_model.assert_equal(resumed, expected)


def _from_files(folder):
    paths = [str(folder / f"rows-{number}") for number in range(3)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for row in range(number, ROWS, 3):
                writer.write(str(row).encode())

    def input_fn(params):
        files = tf.data.Dataset.from_tensor_slices(paths).shuffle(3, seed=2)
        records = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
        rows = records.map(lambda record: tf.strings.to_number(record, tf.int64))
        return counting_model.with_batches(rows.shuffle(7, seed=3).repeat(), params)

    return input_fn


def _of_tensors(params):
    return v1.data.make_one_shot_iterator(shuffled(params)).get_next(), None


def _of_arrays(shuffle):
    def input_fn(params):
        rows, size = {"id": np.arange(ROWS)}, params["batch_size"]
        read = numpy_input_fn(rows, None, size, num_epochs=None, shuffle=shuffle, queue_capacity=8)
        return read()

    return input_fn


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["files read in turn", "tensors", "arrays", "shuffled arrays"])
def test_other_inputs_go_on_too(tmp_path, kind):
    make = {"files read in turn": lambda: _from_files(tmp_path), "tensors": lambda: _of_tensors}
    input_fn = make.get(kind, lambda: _of_arrays(kind == "shuffled arrays"))()
    counts = _same_if_killed(tmp_path, input_fn, config={"tf_random_seed": 3})
    assert set(counts) <= {5, 6}


@pytest.mark.sweep
def test_an_order_that_no_seed_fixes_goes_on_within_its_epoch(tmp_path):
    def input_fn(params):
        rows = tf.data.Dataset.range(ROWS).shuffle(ROWS).repeat()
        return counting_model.with_batches(rows, params)

    resumed = _killed_and_resumed(tmp_path, input_fn)
    assert set(resumed.get_variable_value("counts")) <= {5, 6}


def test_an_input_that_has_ended_has_ended_after_a_restart(tmp_path):
    trained = counting_model.estimator(tmp_path).train(_once)
    again = counting_model.estimator(tmp_path).train(_once)
    assert again.get_variable_value("global_step") == ROWS // BATCH
    np.testing.assert_array_equal(trained.get_variable_value("counts"), np.ones(ROWS))


def test_positions_go_with_their_checkpoints(tmp_path):
    config = {"keep_checkpoint_max": 2, "save_checkpoints_steps": 5}
    counting_model.estimator(tmp_path, config=config).train(shuffled, max_steps=STEPS)
    indices = {os.path.basename(path) for path in glob.glob(f"{tmp_path}/input_position/*.index")}
    assert indices == {"host0-30.index", "host0-33.index"}
    checkpoints = {os.path.basename(path) for path in glob.glob(f"{tmp_path}/*.index")}
    assert checkpoints == {"model.ckpt-30.index", "model.ckpt-33.index"}


def test_another_process_in_the_same_folder_may_remove_positions_too(tmp_path, monkeypatch):
    glob, removed = tf.io.gfile.glob, []

    def listed_and_removed(pattern):
        found = glob(pattern)
        if "input_position" in pattern:
            for path in found:
                if "tempstate" not in path:
                    os.remove(path)
                    removed.append(path)
        return found

    # What the other one is writing just now.
    unfinished = tmp_path / "input_position" / "host0-1.index.tempstate7"
    unfinished.parent.mkdir()
    unfinished.touch()
    monkeypatch.setattr(tf.io.gfile, "glob", listed_and_removed)
    trained = counting_model.estimator(tmp_path).train(shuffled, max_steps=STEPS)
    assert trained.get_variable_value("global_step") == STEPS
    assert removed
    assert unfinished.exists()


def _lines(caplog):
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "input " in line or "the input" in line]


def _resume_with(tmp_path, caplog, input_fn=shuffled, **options):
    caplog.set_level(logging.INFO, "tensorflow")
    caplog.clear()
    counting_model.estimator(tmp_path, **options).train(input_fn, max_steps=30)
    return _lines(caplog)


def _train_to_20(folder, input_fn=shuffled, **options):
    counting_model.estimator(folder, **options).train(input_fn, max_steps=20)


def test_a_checkpoint_without_a_position_starts_the_input_anew_with_one_line(tmp_path, caplog):
    _train_to_20(tmp_path, config={"save_input_position": False})
    (line,) = _resume_with(tmp_path, caplog)
    assert line.startswith("The checkpoint of step 20 has no input position")


def _damage(how, given, *says):
    marks = [] if how.startswith("cut") else [pytest.mark.sweep]
    says = says or ("The input position", "can't be read (", "It is set aside as", ".damaged.*")
    return case("checkpoints", f"an input position {given}", *says, values=how, marks=marks)


@pytest.mark.parametrize(
    "damage",
    [
        _damage("cut", "that was cut off"),
        _damage("cut index", "whose index was cut off"),
        _damage("changed", "with a byte that has changed"),
        _damage("empty", "without content"),
        _damage("no index", "without its index", "The checkpoint of step 20 has no input position"),
    ],
)
def test_a_damaged_position_is_set_aside_with_one_line(tmp_path, caplog, damage, refused):
    _train_to_20(tmp_path)
    (data,) = glob.glob(f"{tmp_path}/input_position/host0-20.data*")
    index = f"{tmp_path}/input_position/host0-20.index"
    path = index if "index" in damage else data
    with open(path, "rb") as file:
        content = bytearray(file.read())
    if damage == "no index":
        os.remove(index)
    else:
        content[len(content) // 2] ^= 255
        cut = {"empty": 0, "changed": len(content)}.get(damage, len(content) // 2)
        with open(path, "wb") as file:
            file.write(content[:cut])
    (line,) = _resume_with(tmp_path, caplog)
    refused.log(line)
    if damage != "no index":
        assert len(glob.glob(f"{tmp_path}/input_position/host0-20.damaged.*")) == 2
    assert len(_resume_with(tmp_path, caplog)) == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"buffer": 9},
        *(pytest.param(how, marks=pytest.mark.sweep) for how in ({"batch": 3}, {"added": True})),
    ],
)
@row(
    "checkpoints",
    "an input position of another input",
    "belongs to another input: its datasets, batch sizes, shapes or number of hosts differ",
)
def test_a_position_of_another_input_is_not_taken(tmp_path, caplog, changed, refused):
    def input_fn(params, buffer=12, batch=BATCH, added=False):
        rows = tf.data.Dataset.range(ROWS).shuffle(buffer, seed=1).repeat()
        rows = rows.map(lambda row: row) if added else rows
        return counting_model.with_batches(rows, {"batch_size": batch})

    _train_to_20(tmp_path, input_fn)
    (line,) = _resume_with(tmp_path, caplog, lambda params: input_fn(params, **changed))
    refused.log(line)


def _generated(params):
    rows = tf.data.Dataset.from_generator(
        lambda: iter(range(ROWS)), output_signature=tf.TensorSpec((), tf.int64)
    )
    return counting_model.with_batches(rows.repeat(), params)


def test_a_generator_is_read_from_its_beginning_and_one_line_says_so(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tensorflow")
    _train_to_20(tmp_path, _generated)
    (line,) = _lines(caplog)
    assert line.startswith("The position of the input is not saved")
    assert "enerator" in line


def _through_python(params):
    rows = tf.data.Dataset.range(ROWS).shuffle(ROWS // 2, seed=5).repeat()
    rows = rows.map(lambda row: tf.ensure_shape(tf.numpy_function(int, [row], tf.int64), ()))
    return counting_model.with_batches(rows, params)


@pytest.mark.sweep
def test_rows_that_pass_through_python_go_on_and_one_line_says_what_does_not(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tensorflow")
    _same_if_killed(tmp_path, _through_python)
    said = {line for line in _lines(caplog) if line.startswith("After a restart")}
    assert len(said) == 1
    assert said.pop().startswith("After a restart the input continues")


@pytest.mark.sweep
def test_a_checkpoint_of_positions_is_read_by_a_training_without(tmp_path):
    _train_to_20(tmp_path)
    trained = counting_model.estimator(tmp_path, config={"save_input_position": False})
    assert trained.train(shuffled, max_steps=30).get_variable_value("global_step") == 30


@pytest.mark.parametrize(
    ("cores", "loop", "mode", "kills"),
    [
        (2, 5, "PER_HOST_V1", ONCE),
        pytest.param(2, 5, "PER_HOST_V2", TWICE, marks=pytest.mark.sweep),
        pytest.param(4, 5, "PER_HOST_V1", TWICE, marks=pytest.mark.sweep),
        pytest.param(2, 1, "PER_SHARD_V1", TWICE, marks=pytest.mark.sweep),
        pytest.param(4, 1, "BROADCAST", TWICE, marks=pytest.mark.sweep),
        pytest.param(4, "auto", "SLICED", TWICE, marks=pytest.mark.sweep),
    ],
)
def test_on_emulated_cores_too(tmp_path, cores, loop, mode, kills):
    options = {
        "use_tpu": True,
        "config": {
            "master": "emulated",
            "tpu_config": tpu.TPUConfig(
                num_shards=cores,
                iterations_per_loop=loop,
                per_host_input_for_training=getattr(tpu.InputPipelineConfig, mode),
            ),
        },
    }
    input_fn = _of_tensors if mode == "PER_SHARD_V1" else shuffled
    assert _same_if_killed(tmp_path, input_fn, kills=kills, **options).sum() == STEPS * BATCH


def _of_host(params):
    context = params["context"]
    _, host, hosts, _ = context.current_input_fn_deployment()
    assert hosts == 2
    rows = tf.data.Dataset.range(ROWS).shard(hosts, host)
    return counting_model.with_batches(rows.shuffle(5, seed=host).repeat(), params)


@pytest.mark.sweep
def test_each_host_of_emulated_cores_goes_on_with_its_own_rows(tmp_path):
    tpu_config = tpu.TPUConfig(
        num_shards=2,
        num_cores_per_replica=8,
        iterations_per_loop=5,
        per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
    )
    options = {"use_tpu": True, "config": {"master": "emulated", "tpu_config": tpu_config}}
    assert set(_same_if_killed(tmp_path, _of_host, **options)) == {5, 6}


def _with_dropout(features, labels, mode, params):
    """A model whose variable remembers every random number that it was given."""
    spec = counting_model.model_fn(features, labels, mode, params)
    rows = tf.ones([tf.size(features["id"]), 5])
    noise = [
        tf.reduce_sum(tf.nn.dropout(rows, rate=0.4)),
        tf.reduce_sum(v1.random_normal([3, 2])),
        tf.reduce_sum(v1.truncated_normal([7], seed=3)),
        tf.cast(tf.reduce_sum(v1.random_uniform([4], maxval=99, dtype=tf.int32)), tf.float32),
    ]
    drawn = v1.get_variable("drawn", [4], initializer=v1.random_normal_initializer())
    loss = spec.loss + tf.reduce_sum(drawn * tf.square(tf.stack(noise)))
    optimizer = v1.train.AdamOptimizer(0.01)
    if params.get("use_tpu"):
        optimizer = tpu.CrossShardOptimizer(optimizer)
    train_op = tf.group(spec.train_op, optimizer.minimize(loss, var_list=[drawn]))
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.sweep
@pytest.mark.parametrize("jit_compile", [None, False])
def test_which_steps_are_made_in_a_loop_changes_no_bit(tmp_path, jit_compile):
    options = {"model": counting_model.embedded_model_fn, "config": {"jit_compile": jit_compile}}
    _same_if_killed(tmp_path, kills=(12, 14, 25, 29), kill=_KillAtLoopEnd, **options)


def _dropout_options(**config):
    return {"model": _with_dropout, "config": {"tf_random_seed": 4, **config}}


@pytest.mark.parametrize("kill", [_KillAtLoopEnd, pytest.param(KillAt, marks=pytest.mark.sweep)])
@mostly_swept("kills", [ONCE, TWICE], kept=[ONCE])
def test_seeded_random_ops_draw_what_comes_next(tmp_path, kill, kills):
    _same_if_killed(tmp_path, kills=kills, kill=kill, **_dropout_options())


@pytest.mark.sweep
def test_the_numbers_drawn_are_those_of_a_training_without_positions(tmp_path):
    with_positions = counting_model.estimator(tmp_path / "with", **_dropout_options())
    without = counting_model.estimator(
        tmp_path / "without", **_dropout_options(save_input_position=False)
    )
    for estimator in (with_positions, without):
        estimator.train(shuffled, hooks=[SeesEveryStep()], max_steps=12)
    counting_model.assert_equal(with_positions, without)


@pytest.mark.sweep
@pytest.mark.parametrize("cores", [2, 4])
def test_random_ops_on_cores_draw_what_comes_next(tmp_path, cores):
    tpu_config = tpu.TPUConfig(num_shards=cores, iterations_per_loop=5)
    options = _dropout_options(master="emulated", tpu_config=tpu_config) | {"use_tpu": True}
    _same_if_killed(tmp_path, **options)
    options["config"]["save_input_position"] = False
    without = _uninterrupted(tmp_path / "without", **options)
    counting_model.assert_equal(without, counting_model.estimator(tmp_path / "expected", **options))


@pytest.mark.sweep
def test_a_generator_of_random_numbers_goes_on(tmp_path):
    def model_fn(features, labels, mode, params):
        spec = counting_model.model_fn(features, labels, mode, params)
        drawn = v1.get_variable("drawn", [], initializer=v1.zeros_initializer())
        noise = tf.random.Generator.from_seed(3).normal([])
        with tf.control_dependencies([spec.train_op]):
            return spec._replace(train_op=drawn.assign_add(noise).op)

    _same_if_killed(tmp_path, kill=_KillAtLoopEnd, model=model_fn)
    assert counting_model.estimator(tmp_path / "resumed").get_variable_value("drawn") != 0


@pytest.mark.sweep
def test_random_ops_without_a_stateless_twin_are_named(tmp_path, caplog):
    def model_fn(features, labels, mode, params):
        spec = counting_model.model_fn(features, labels, mode, params)
        shuffled_rows = tf.random.shuffle(tf.range(3.0), seed=1)
        (in_loop,) = tf.while_loop(
            lambda total: total < 3.0,
            lambda total: (total + v1.random_uniform([], 0.5, 1.0, seed=2),),
            (tf.constant(0.0),),
        )
        return spec._replace(loss=spec.loss + 0 * in_loop + 0 * shuffled_rows[0])

    caplog.set_level(logging.INFO, "tensorflow")
    counting_model.estimator(tmp_path, model=model_fn).train(shuffled, max_steps=2)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "these random ops" in record.getMessage()
    ]
    assert "(RandomShuffle)" in line
    assert "(RandomUniform)" in line


def _under_strategy(folder, strategy, **config):
    config = {"save_input_position": True, "save_checkpoints_steps": 10, **config}
    config = RunConfig(model_dir=str(folder), train_distribute=strategy, **config)
    return Estimator(
        counting_model.noisy_model_fn, config=config, params={"batch_size": BATCH // 2}
    )


@pytest.mark.parametrize(
    "config", [{}, pytest.param({"tf_random_seed": 3}, marks=pytest.mark.sweep)]
)
@mostly_swept("kills", [ONCE, TWICE], kept=[ONCE])
def test_under_a_mirrored_strategy_too(tmp_path, config, kills):
    # With collectives, a strategy fails where one of another size has run in this process.
    strategy = tf.distribute.MirroredStrategy(
        ["cpu:0", "cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    expected = _under_strategy(tmp_path / "expected", strategy, **config)
    expected.train(shuffled, max_steps=STEPS)
    for step in kills:
        with pytest.raises(Killed):
            _under_strategy(tmp_path / "resumed", strategy, **config).train(
                shuffled, hooks=[KillAt(step)], max_steps=STEPS
            )
    resumed = _under_strategy(tmp_path / "resumed", strategy, **config)
    resumed.train(shuffled, max_steps=STEPS)
    counting_model.assert_equal(resumed, expected)
    assert resumed.get_variable_value("counts").std() > 0
    if kills == ONCE:
        return
    config = {**config, "save_input_position": False}
    without = _under_strategy(tmp_path / "without", strategy, **config)
    without.train(shuffled, max_steps=STEPS)
    counting_model.assert_equal(without, expected)

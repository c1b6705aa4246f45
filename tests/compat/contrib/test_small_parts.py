"""What the recorded cases do not show: files, sessions, errors, random numbers."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.compat.contrib.training import HParams, parse_values

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as made:
        yield made


def test_adam_w_decays_only_the_variables_that_minimize_names(graph):
    one, two = (v1.get_variable(each, initializer=2.0, use_resource=True) for each in "ab")
    optimizer = contrib.opt.extend_with_decoupled_weight_decay(v1.train.GradientDescentOptimizer)
    train = optimizer(0.25, learning_rate=0.0).minimize(one + two, decay_var_list=[one])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert session.run([one, two]) == [1.5, 2.0]


def test_weights_of_rows_that_are_looked_up_decay_alone(graph):
    """By the formula; the original reads a row before or after its decay, by chance."""
    table = v1.get_variable("table", initializer=[[1.0], [2.0], [3.0]], use_resource=True)
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, [1, 1, 2])))
    optimizer = contrib.opt.extend_with_decoupled_weight_decay(v1.train.MomentumOptimizer)
    train = optimizer(0.25, learning_rate=0.125, momentum=0.0).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train)
        # Less a quarter, less an eighth of the gradient: 2 * 2 twice, and 2 * 3.
        assert session.run(table).tolist() == [[1.0], [1.5 - 1.0], [2.25 - 0.75]]


def test_a_swapping_saver_saves_averages_in_place_of_variables(graph, tmp_path):
    weight = v1.get_variable("weight", initializer=4.0, use_resource=True)
    optimizer = contrib.opt.MovingAverageOptimizer(
        v1.train.GradientDescentOptimizer(1.0), average_decay=0.5
    )
    with pytest.raises(RuntimeError, match="after minimize"):
        optimizer.swapping_saver()
    train = optimizer.minimize(weight)
    saver = optimizer.swapping_saver()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train)
        path = saver.save(session, str(tmp_path / "model"))
    # The weight went from 4 to 3, the average half of the way.
    assert tf.train.load_variable(path, "weight") == 3.5
    assert tf.train.load_variable(path, "weight/ExponentialMovingAverage") == 3.0
    with pytest.raises(ValueError, match="not one of the variables to save"):
        optimizer.swapping_saver([weight])


@pytest.mark.sweep
def test_cells_say_which_keras_they_need():
    program = "from tfx_tpu_trainer.compat.contrib import rnn"
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ended.returncode == 1
    assert "TF_USE_LEGACY_KERAS=1" in ended.stderr.strip().splitlines()[-1]


def test_initializers_have_the_variance_of_their_fan(graph):
    shape = (5, 5, 40, 20)
    normal = contrib.layers.variance_scaling_initializer(seed=1)(shape)
    uniform = contrib.layers.xavier_initializer(seed=1)(shape)
    with v1.Session() as session:
        drawn, even = session.run([normal, uniform])
    # A normal distribution cut at two deviations has 0.774 of its variance.
    assert np.var(drawn) == pytest.approx(1.3 * 2.0 / 1000 * 0.774, rel=0.05)
    limit = (3.0 / ((1000 + 500) / 2)) ** 0.5
    assert 0.98 * limit < np.abs(even).max() <= limit
    with pytest.raises(TypeError, match="FAN_SUM"):
        contrib.layers.variance_scaling_initializer(mode="FAN_SUM")


def test_dropout_keeps_the_share_and_the_sum(graph):
    dropped = contrib.layers.dropout(tf.ones([100, 100]), keep_prob=0.8, seed=3)
    with v1.Session() as session:
        values = session.run(dropped)
    assert set(np.unique(values)) == {np.float32(0.0), np.float32(1.25)}
    assert values.mean() == pytest.approx(1.0, abs=0.02)


def test_variables_are_set_from_a_checkpoint(graph, tmp_path):
    weight = v1.get_variable("weight", initializer=[1.0, 2.0])
    other = v1.get_variable("other", initializer=3.0)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver([weight]).save(session, str(tmp_path / "model"))
        session.run(weight.assign([0.0, 0.0]))
        restore = contrib.framework.assign_from_checkpoint_fn(
            path, [weight, other], ignore_missing_vars=True
        )
        restore(session)
        assert session.run(weight).tolist() == [1.0, 2.0]


def test_vocabularies_are_read_from_files(graph, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\nc\n")
    index = contrib.lookup.index_table_from_file(str(path), num_oov_buckets=1)
    words = contrib.lookup.index_to_string_table_from_file(str(path), vocab_size=2)
    with v1.Session() as session:
        session.run(v1.tables_initializer())
        assert session.run(index.lookup(tf.constant(["c", "x", "a"]))).tolist() == [2, 3, 0]
        found = session.run(words.lookup(tf.constant([1, 2], tf.int64))).tolist()
    assert found == [b"b", b"UNK"]
    assert str(path) in [
        each.eval(session=v1.Session()).decode()
        for each in v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
    ]
    with pytest.raises(ValueError, match="path of a file"):
        contrib.lookup.index_table_from_file("")


def test_a_deprecated_function_warns_once(caplog):
    @contrib.framework.deprecated("2030-01-01", "Use other.")
    def old(value):
        return value + 1

    with caplog.at_level("WARNING"):
        assert [old(1), old(2)] == [2, 3]
    (told,) = {each.getMessage() for each in caplog.records if "Use other." in each.getMessage()}
    assert told.endswith(".old is deprecated and will be removed after 2030-01-01. Use other.")
    assert len([each for each in caplog.records if each.name == caplog.records[0].name]) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: contrib.layers.layer_norm(x, begin_norm_axis=2), "must be less"),
        (lambda x: contrib.layers.conv2d(x, 2, 3), "expects 4 axes; got 2"),
        (lambda x: contrib.layers.fully_connected(x, 2.5), r"integer; got 2\.5"),
        (lambda x: contrib.layers.batch_norm(x, renorm=True), "neither renorm"),
        (lambda x: contrib.layers.batch_norm(x, data_format="CHW"), "one of NHWC, NCHW; got 'CHW'"),
        (lambda x: contrib.layers.l2_regularizer(1), "cannot be an integer"),
        (lambda x: contrib.layers.group_norm(x, reduction_axes=[0]), "groups of equal size"),
        (lambda x: contrib.layers.optimize_loss(x[0, 0], None, 0.1, "None"), "one of Adagrad"),
        (lambda x: contrib.layers.optimize_loss(x, None, 0.1, "SGD"), "loss must be a scalar"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_does(graph, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(tf.ones([2, 3]))


def test_scopes_of_arguments_take_functions_that_were_made_for_them():
    @contrib.framework.add_arg_scope
    def plus(value, more=1):
        return value + more

    with contrib.framework.arg_scope([plus], more=5) as scope:
        assert plus(1) == 6
        assert plus(1, more=2) == 3
    assert plus(1) == 2
    with contrib.framework.arg_scope(scope):
        assert plus(1) == 6
    with pytest.raises(ValueError, match="add_arg_scope"), contrib.framework.arg_scope([len]):
        pass
    with pytest.raises(ValueError, match="not both"), contrib.framework.arg_scope(scope, more=1):
        pass


def test_summaries_are_written_with_every_nth_step(tmp_path):
    summary = contrib.summary
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        writer = summary.create_file_writer(str(tmp_path), flush_millis=10)
        with writer.as_default(), summary.record_summaries_every_n_global_steps(2, step):
            summary.scalar("loss", tf.constant(3.0), step=step)
            summary.scalar("loss", tf.constant(4.0), family="more", step=step)
        ops = summary.all_summary_ops()
        with v1.Session() as session:
            session.run(
                [v1.global_variables_initializer(), *summary.summary_writer_initializer_op()]
            )
            for _ in range(4):
                session.run(ops)
                session.run(v1.assign_add(step, 1))
            session.run(writer.flush())
    (file,) = tmp_path.iterdir()
    found = [
        (value.tag, event.step)
        for event in v1.train.summary_iterator(str(file))
        for value in event.summary.value
    ]
    assert sorted(found) == [("loss", 0), ("loss", 2), ("more/loss", 0), ("more/loss", 2)]


def _params():
    return HParams(rate=0.1, units=3, name="a", flag=True, sizes=[1, 2, 3])


def test_text_sets_values_of_every_type():
    params = _params().parse("rate=1e-3, units=7,name=relu6,flag=false,sizes=[4 5,6]")
    assert params.values() == {
        "rate": 0.001,
        "units": 7,
        "name": "relu6",
        "flag": False,
        "sizes": [4, 5, 6],
    }


def test_text_sets_elements_of_a_list():
    assert _params().parse("sizes[1]=9,sizes[0]=8").sizes == [8, 9, 3]
    with pytest.raises(ValueError, match="3 elements, so index 3 is out of range"):
        _params().parse("sizes[3]=1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("units=1.5", "Could not parse hparam 'units'"),
        ("other=1", "Unknown hyperparameter type for other"),
        ("units", "Malformed"),
        ("units=1,units=2", "Multiple assignments"),
        ("sizes=[1],sizes[0]=2", "Multiple assignments"),
        ("sizes[0]=1,sizes[0]=2", "Multiple assignments"),
        ("sizes[0]=[1,2]", "can't be assigned to the element"),
        ("sizes=1", "Must pass a list for multi-valued parameter: sizes"),
        ("units=[1]", "Must not pass a list for single-valued parameter: units"),
        ("flag=maybe", "Could not parse hparam 'flag'"),
    ],
)
def test_text_that_does_not_fit_is_an_error_that_names_it(text, message):
    with pytest.raises(ValueError, match=message):
        _params().parse(text)


def test_values_are_cast_to_the_type_that_they_began_with():
    params = _params()
    params.set_hparam("rate", 1)
    assert type(params.rate) is float
    for name, value in (("units", 1.5), ("units", True), ("name", 3), ("rate", "x"), ("flag", 1)):
        with pytest.raises(ValueError, match=f"Could not cast hparam '{name}'"):
            params.set_hparam(name, value)
    with pytest.raises(KeyError):
        params.set_hparam("other", 1)
    params.add_hparam("anything", None)
    params.set_hparam("anything", 3)
    assert params.anything == 3


def test_names_are_added_found_and_removed():
    params = _params()
    assert "units" in params
    assert params.get("units") == 3
    assert params.get("other", 5) == 5
    with pytest.raises(ValueError, match="incompatible"):
        params.get("sizes", 5)
    params.del_hparam("units")
    params.del_hparam("units")
    assert "units" not in params
    with pytest.raises(ValueError, match="reserved: rate"):
        params.add_hparam("rate", 1)
    with pytest.raises(ValueError, match="reserved: parse"):
        params.add_hparam("parse", 1)
    with pytest.raises(ValueError, match="cannot be empty"):
        params.add_hparam("none", [])


def test_json_goes_out_and_in():
    params = _params()
    text = params.to_json(sort_keys=True)
    assert json.loads(text) == params.values()
    assert HParams(**params.values()).parse_json('{"units": 9}').units == 9
    assert params.override_from_dict({"name": "b"}) is params
    assert repr(HParams(b=1, a=2)) == "HParams([('a', 2), ('b', 1)])"
    assert str(HParams(b=1, a=2)) == "b=1,a=2"


def test_unknown_names_can_be_left_out():
    assert parse_values("a=1,b=2,c[1]=x", {"b": int, "c": str}, ignore_unknown=True) == {
        "b": 2,
        "c": {1: "x"},
    }

"""What a saver writes, copied and written later: the same bytes as the saver's own, of the moment of the copy."""

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import CopiedState
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import saver_of_objects

v1 = tf.compat.v1


def _nothing():
    pass


def _variables(*, resources=True):
    kinds = [tf.float32, tf.bfloat16, tf.float64, tf.int64, tf.uint8, tf.bool, tf.complex64]
    for kind in kinds:
        v1.get_variable(
            kind.name,
            initializer=tf.cast(tf.constant([[1, 0, 2]]), kind),
            use_resource=resources,
            trainable=False,
        )
    v1.get_variable("large", [3000], initializer=v1.ones_initializer(), use_resource=resources)
    v1.get_variable("none", [0, 3], initializer=v1.ones_initializer(), use_resource=resources)
    v1.get_variable(
        "in_parts",
        [10, 2],
        initializer=v1.random_normal_initializer(seed=1),
        partitioner=v1.fixed_size_partitioner(3),
        use_resource=resources,
    )
    v1.train.create_global_step()


def _sharded():
    _variables()
    with v1.device("/cpu:1"):
        v1.get_variable("elsewhere", [5], initializer=v1.ones_initializer())
    return v1.train.Saver(sharded=True, save_relative_paths=True)


def _one_file():
    _variables()
    return v1.train.Saver()


def _of_references():
    _variables(resources=False)
    return v1.train.Saver(sharded=True)


def _of_objects():
    kernel = tf.Variable([[1.0, 2.0]], name="kernel")
    return saver_of_objects(tf.train.Checkpoint(kernel=kernel, step=tf.Variable(3)))


def _changes():
    """Changes all variables, in place where there is a way."""
    for variable in v1.global_variables():
        value = variable.read_value() if hasattr(variable, "read_value") else variable
        flipped = tf.math.logical_not if value.dtype.base_dtype == tf.bool else lambda x: x + x + 1
        yield v1.assign(variable, flipped(value))
        if variable.name.startswith(("large", "in_parts")):
            yield v1.scatter_add(variable, [0], variable[:1])


def _written(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "checkpoint"}


@pytest.mark.parametrize("make", [_sharded, _one_file, _of_references, _of_objects])
def test_a_copy_is_written_as_the_saver_writes_what_it_was_taken_of(tmp_path, make):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    with tf.Graph().as_default() as graph:
        saver = make()
        changes = list(_changes())
        config = v1.ConfigProto(device_count={"CPU": 2})
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            copied = CopiedState.of(saver, graph)
            session.run(changes)
            before = session.run(v1.global_variables())
            saver.save(session, str(theirs / "model"), global_step=7, write_meta_graph=False)
            values = copied.take(session)
            session.run(changes)
            after = session.run(v1.global_variables())
        # The session is closed: nothing of it is needed.
        path = copied.write(
            values,
            lambda writing: saver.save(
                writing, str(ours / "model"), global_step=7, write_meta_graph=False
            ),
            before_commit=_nothing,
        )
    assert path == str(ours / "model-7")
    assert values == []
    assert not any(
        np.array_equal(each, changed) for each, changed in zip(before, after) if each.size
    )
    assert _written(ours) == _written(theirs)
    assert tf.train.latest_checkpoint(str(ours)) == path


def test_it_knows_its_size():
    with tf.Graph().as_default() as graph:
        v1.get_variable("a", [1000, 3])
        v1.get_variable("b", [7], tf.float64, initializer=v1.zeros_initializer())
        saver = v1.train.Saver(sharded=True)
        assert CopiedState.of(saver, graph).size == 1000 * 3 * 4 + 7 * 8


@pytest.mark.parametrize("make", [_sharded, _one_file])
def test_a_commit_that_is_refused_leaves_no_checkpoint(tmp_path, make):
    def refuse():
        raise InterruptedError("not ours")

    with tf.Graph().as_default() as graph:
        saver = make()
        copied = CopiedState.of(saver, graph)
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(v1.global_variables_initializer())
            values = copied.take(session)
        with pytest.raises(InterruptedError, match="not ours"):
            copied.write(
                values,
                lambda writing: saver.save(writing, str(tmp_path / "model")),
                before_commit=refuse,
            )
    assert not list(tmp_path.glob("*.index"))
    assert not list(tmp_path.glob("*.data*"))
    assert not (tmp_path / "checkpoint").exists()


def _of_a_table():
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    return v1.train.Saver([v1.train.create_global_step(), table])


def _of_text():
    return v1.train.Saver([v1.get_variable("text", initializer=["a", "b"])])


def _of_any_shape():
    free = v1.placeholder_with_default([1.0], [None])
    return v1.train.Saver([v1.Variable(free, validate_shape=False)])


class _Squared(v1.train.Saver):
    """Saves by an op that no Saver has."""

    def __init__(self):
        step = v1.train.create_global_step()
        super().__init__([step])
        with tf.control_dependencies([tf.raw_ops.Timestamp().op]):
            prefix = tf.identity(
                v1.get_default_graph().get_tensor_by_name(self.saver_def.save_tensor_name)
            )
        self.saver_def.save_tensor_name = prefix.name


def _empty():
    return v1.train.Saver(allow_empty=True)


@pytest.mark.parametrize("make", [_of_a_table, _of_text, _of_any_shape, _Squared, _empty])
def test_what_can_not_be_copied_is_left_to_the_saver(make):
    with tf.Graph().as_default() as graph:
        assert CopiedState.of(make(), graph) is None

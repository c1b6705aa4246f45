"""Each class of op that no TPU runs: the problem names the op, the model's line and what to do."""

import pathlib

import pytest
import tensorflow as tf

from tests.preflight.lowered import CHECK_ONLY, lower_function
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.preflight._compiling import compile_steps

v1 = tf.compat.v1


def python_function(x):
    return v1.py_func(lambda a: a + 1, [x], tf.float32)


def eager_python_function(x):
    return tf.py_function(lambda a: a + 1, [x], tf.float32)


def string_op(x):
    return x + tf.strings.to_number(tf.strings.as_string(x))


def hash_table(x):
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), [1.0, 2.0])
    table = tf.lookup.StaticHashTable(pairs, 0.0)
    return x + table.lookup(tf.cast(x, tf.int64))


def reference_variable(x):
    return x + tf.raw_ops.VariableV2(shape=[8], dtype=tf.float32)


def legacy_control_flow(x):
    v1.disable_control_flow_v2()
    try:
        return tf.cond(x[0, 0] > 0, lambda: x + 1, lambda: x - 1)
    finally:
        v1.enable_control_flow_v2()


def dataset(x):
    rows = tf.data.Dataset.from_tensors(tf.ones([8])).repeat()
    return x + v1.data.make_one_shot_iterator(rows).get_next()


def printing(x):
    with tf.control_dependencies([tf.print(x)]):
        return tf.identity(x)


def summary(x):
    v1.summary.scalar("mean", tf.reduce_mean(x), collections=["mine"])
    with tf.control_dependencies(v1.get_collection("mine")):
        return tf.identity(x)


def placeholder(x):
    return x * v1.placeholder(tf.float32, [])


def in_a_loop(x):
    def body(index, value):
        words = tf.strings.as_string(value)
        return index + 1, tf.ensure_shape(tf.strings.to_number(words), [4, 8])

    return tf.while_loop(lambda index, _: index < 3, body, [0, x])[1]


def shape_of_data(x):
    rows = tf.cast(x[0, 0], tf.int32)
    return tf.reshape(x, [rows, -1])


def op_without_kernel(x):
    return tf.linalg.det(tf.matmul(x, x, transpose_a=True))


@pytest.mark.parametrize(
    ("function", "op_type", "says", "advises"),
    [
        (python_function, "PyFunc", "calls Python", "TensorFlow ops"),
        (eager_python_function, "EagerPyFunc", "calls Python", "in Transform or in the input_fn"),
        (string_op, "AsString", "handles strings", "compute_and_apply_vocabulary"),
        (hash_table, "HashTableV2", "looks up a table", "compute_and_apply_vocabulary"),
        (reference_variable, "VariableV2", "reference variable", "tf.compat.v1.get_variable"),
        (legacy_control_flow, "Switch", "control flow of version 1", "disable_control_flow_v2"),
        (dataset, "OneShotIterator", "reads a dataset", "in the input_fn"),
        (printing, "StringFormat", "prints", "host_call"),
        (summary, "ScalarSummary", "writes a summary", "host_call=(function, tensors)"),
        (placeholder, "Placeholder", "nothing feeds", "features or labels"),
        (in_a_loop, "AsString", "part of StatelessWhile 'while'", "in Transform"),
        (shape_of_data, "Reshape", "depends on data", "static shapes"),
        (op_without_kernel, "MatrixDeterminant", "no XLA kernel", "another op"),
    ],
)
def test_the_message_names_op_line_and_remedy(function, op_type, says, advises):
    problem = lower_function(function).problem
    assert problem is not None
    assert (problem.stage, problem.op_type) == ("lowering", op_type)
    assert problem.op_name
    assert says in problem.message and op_type in problem.message
    assert advises in problem.advice
    file, line, _ = problem.source.split(":", 2)
    first = function.__code__.co_firstlineno
    assert pathlib.Path(file) == pathlib.Path(__file__)
    assert first < int(line) <= first + 8
    assert str(problem) == f"{problem.message} ({problem.source}) {problem.advice}"


def int64_product(x):
    return tf.matmul(tf.cast(x, tf.int64), tf.cast(tf.transpose(x), tf.int64))


def complex128_transform(x):
    return tf.math.real(tf.signal.fft(tf.cast(x, tf.complex128)))


_INT64 = (int64_product, "MatMul", "Cast to tf.int32 or tf.float32")


@mostly_swept(
    ("function", "op_type", "advises"),
    [_INT64, (complex128_transform, "FFT", "Cast to tf.complex64")],
    kept=[_INT64],
)
def test_what_only_the_compiler_refuses_is_named_too(function, op_type, advises):
    step = lower_function(lambda x: tf.cast(function(x), tf.float32))
    assert step.problem is None
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    problem = compiled.problem
    assert problem is not None
    assert (problem.stage, problem.op_type) == ("compiler", op_type)
    assert advises in problem.advice
    assert f":{function.__code__.co_firstlineno + 1}: return" in problem.source
    assert compiled.memory is None


def boolean_mask(x):
    return tf.boolean_mask(x, x > 0)


def where(x):
    return tf.cast(tf.where(x > 0), tf.float32)


def unique(x):
    return tf.unique(tf.reshape(x, [-1]))[0]


@mostly_swept(
    ("function", "bound"),
    [(boolean_mask, "<=32"), (where, "<=32"), (unique, "<=32")],
    kept=[(unique, "<=32")],
)
def test_bounded_shapes_compile_with_a_warning(function, bound):
    step = lower_function(function)
    (finding,) = [each for each in step.findings if each.kind == "dynamic_shape"]
    assert bound in finding.message
    assert f":{function.__code__.co_firstlineno + 1}: return" in finding.source
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is None
    assert finding in compiled.findings


def test_wide_types_are_warned_of_by_their_line():
    step = lower_function(lambda x: tf.exp(tf.cast(x, tf.float64)))
    (finding,) = [each for each in step.findings if each.kind == "wide_dtype"][:1]
    assert finding.op_type == "Exp" and "float64" in finding.message
    assert "Cast to tf.float32" in finding.message
    assert "tf.exp(tf.cast" in finding.source
    # The global step, a scalar, is not a reason for a warning.
    plain = lower_function(tf.exp)
    assert not [each for each in plain.findings if each.kind == "wide_dtype"]


def test_padding_of_small_dimensions_is_warned_of():
    def finding(shape):
        step = lower_function(tf.identity, shape=shape)
        return [each for each in step.findings if each.kind == "padding"]

    assert finding((8, 128)) == []
    (padded,) = finding((4, 8))
    # [4, 8] by [8, 8] in tiles of 8 x 128: 4 * 8 * 8 of 8 * 128 * 128.
    assert "[4, 8] by [8, 8], which fills 0.2% of the 8 x 128 tiles" in padded.message
    cells = (8 * 128 + 128 * 128 + 8 * 128) - (4 * 8 + 8 * 8 + 4 * 8)
    assert padded.wasted_bytes == 4 * cells


def test_asserts_are_dropped_as_the_compiler_does():
    def asserting(x):
        positive = v1.assert_greater(tf.reduce_sum(x), -1e9, message="too small")
        with tf.control_dependencies([positive]):
            return tf.identity(x)

    step = lower_function(asserting)
    assert step.problem is None
    assert compile_steps([step], "v5e:1x1", CHECK_ONLY)[0].problem is None

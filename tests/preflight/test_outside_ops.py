"""What `outside_compilation` keeps on the host is no part of the program that the TPU compiler gets."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.preflight.lowered import CHECK_ONLY, lower_function
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._hlo_module import HloModule

v1 = tf.compat.v1
ROWS, COLUMNS = 4, 8


def _by_way_of_text(x):
    """Python and strings, as no TPU runs them."""
    doubled = tf.numpy_function(lambda a: a * 2, [x], tf.float32)
    return tf.ensure_shape(tf.strings.to_number(tf.strings.as_string(doubled)), x.shape)


def in_the_step(x):
    return x * v1.tpu.outside_compilation(_by_way_of_text, x)


def in_a_loop(x):
    def body(index, value):
        return index + 1, value * v1.tpu.outside_compilation(_by_way_of_text, value)

    return tf.while_loop(lambda index, _: index < 3, body, [0, x])[1]


def in_a_branch(x):
    return tf.cond(x[0, 0] > 0, lambda: in_the_step(x), lambda: x)


def in_a_table(x):
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), [1.0, 2.0])
    table = tf.lookup.StaticHashTable(pairs, 0.0)
    return x + v1.tpu.outside_compilation(lambda ids: table.lookup(ids), tf.cast(x, tf.int64))


def alone(x):
    v1.tpu.outside_compilation(tf.print, x)
    return x


def summary(x):
    def report(mean):
        writer = tf.summary.create_file_writer("/nowhere")
        with writer.as_default(), tf.summary.record_if(lambda: mean > 0):
            tf.summary.scalar("mean", mean, step=v1.train.get_global_step())

    v1.tpu.outside_compilation(report, tf.reduce_mean(x))
    return x


@pytest.mark.parametrize(
    "function", [in_the_step, in_a_loop, in_a_branch, in_a_table, alone, summary]
)
def test_the_rest_compiles(function):
    step = lower_function(function)
    assert step.problem is None
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is None
    (finding,) = [each for each in step.findings if each.kind == "host_op"]
    kept = {alone: "PrintV2", in_a_table: "LookupTableFindV2", summary: "WriteSummary"}
    assert kept.get(function, "PyFunc") in finding.message


def test_the_host_is_sent_what_it_reads_before_the_program_goes_on():
    module = HloModule(lower_function(in_the_step).hlo)
    by_id = module.by_id()
    (barrier,) = [each for each in by_id.values() if each.opcode == "opt-barrier"]
    (crossing,) = [by_id[number] for number in barrier.operand_ids]
    made_by, pending = set(), list(crossing.operand_ids)
    while pending:
        instruction = by_id[pending.pop()]
        made_by.add(instruction.opcode)
        pending += instruction.operand_ids
    # Room for what comes back, and the product of the kernel that is sent.
    assert {"broadcast", "dot"} <= made_by
    assert {tuple(shape.dimensions) for shape in crossing.shape.tuple_shapes} == {(ROWS, COLUMNS)}


@row(
    "preflight",
    "a result of `outside_compilation` without a static shape",
    "a TPU needs a static one",
    "tf.ensure_shape",
)
def test_a_result_without_a_shape_is_refused(refused):
    def any_shape(x):
        return tf.numpy_function(lambda a: a, [x], tf.float32)

    with refused(ValueError):
        lower_function(lambda x: x + tf.reduce_sum(v1.tpu.outside_compilation(any_shape, x)))

"""Lowered and compiled steps by the formula, and without what `outside_compilation` keeps on the host."""

import subprocess
import sys

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.preflight.lowered import CHECK_ONLY, lower_function, lower_layers
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._hlo_module import HloModule
from tfx_tpu_trainer.preflight._results import CompiledStep, LoweredStep

ROWS, COLUMNS, UNITS = 512, 1024, 256
# Two powers of Adam's betas, float32, and the global step, int64.
SCALARS_BYTES = 2 * 4 + 8


def test_a_matrix_product_is_two_operations_for_each_of_its_multiplications():
    step = lower_layers([UNITS], rows=ROWS, columns=COLUMNS, mode="infer")
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is None
    product = 2 * ROWS * COLUMNS * UNITS
    # The relu is one more for each result.
    assert product <= compiled.flops <= product + 2 * ROWS * UNITS


@pytest.fixture(scope="module")
def training() -> tuple[LoweredStep, CompiledStep]:
    """A layer's training step, and what the compiler makes of it."""
    step = lower_layers([UNITS], rows=ROWS, columns=COLUMNS)
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    return step, compiled


def test_training_state_of_adam_is_three_times_the_parameters(training):
    step, compiled = training
    parameters = COLUMNS * UNITS
    assert step.problem is None
    assert step.parameter_count == parameters
    assert step.variable_bytes == 3 * 4 * parameters + SCALARS_BYTES
    assert (step.rows, step.num_replicas, step.name) == (ROWS, 1, "train")

    memory = compiled.memory
    assert memory is not None and compiled.problem is None
    state, batch = 3 * 4 * parameters, 4 * ROWS * COLUMNS
    # What is small takes a tile or so.
    assert state + batch <= memory.argument_bytes <= state + batch + 8192
    # The new state takes the old one's place.
    assert state <= memory.alias_bytes <= memory.output_bytes <= state + 8192
    assert compiled.need_bytes == memory.total
    assert memory.total == (
        memory.argument_bytes
        + memory.output_bytes
        - memory.alias_bytes
        + memory.temp_bytes
        + memory.generated_code_bytes
    )


def test_the_largest_allocations_have_the_names_of_variables_and_features(training):
    _, compiled = training
    largest = {each.op_name: each for each in compiled.largest[:4]}
    assert set(largest) == {
        "features['x']",
        "layer_0/kernel",
        "layer_0/kernel/Adam",
        "layer_0/kernel/Adam_1",
    }
    kernel = largest["layer_0/kernel"]
    assert kernel.bytes == kernel.unpadded_bytes == 4 * COLUMNS * UNITS
    assert kernel.category == "argument" and kernel.shape.startswith("f32[1024,256]")


def test_gradients_are_summed_over_all_replicas():
    step = lower_layers([UNITS], rows=ROWS, columns=COLUMNS, replicas=8)
    sums = [each for each in HloModule(step.hlo).instructions() if each.opcode == "all-reduce"]
    groups = [list(group.replica_ids) for each in sums for group in each.replica_groups]
    assert groups == [list(range(8))]
    (compiled,) = compile_steps([step], "v5e:2x4", CHECK_ONLY)
    assert compiled.problem is None
    assert compiled.collective_bytes == 4 * COLUMNS * UNITS
    assert compiled.target == "v5e:2x4"


def test_a_state_larger_than_this_machines_memory_is_lowered():
    # 48 GiB of state, on paper.
    step = lower_layers([65_536], rows=8, columns=65_536)
    assert step.problem is None
    assert step.variable_bytes == 3 * 4 * 65_536**2 + SCALARS_BYTES
    (compiled,) = compile_steps([step], "v5e:1x1", CHECK_ONLY)
    assert compiled.problem is not None and compiled.problem.stage == "memory"
    assert "layer_0/kernel 16.00 GiB (f32[65536,65536], argument)" in compiled.problem.message
    assert "may use only 15.75 GiB on v5e:1x1" in compiled.problem.message
    assert "optimizer with less state" in compiled.problem.advice
    assert compiled.largest[0].bytes == 4 * 65_536**2


def test_a_program_that_has_switched_to_version_1_is_lowered():
    # As old model files do when they are imported; it can't be undone in a process.
    program = (
        "import tensorflow as tf; tf.compat.v1.disable_v2_behavior()\n"
        "from tests.preflight.lowered import *\n"
        "x = lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, 2 * y), [0, x])[1]\n"
        "print(lower_function(x).problem, tf.executing_eagerly())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "None False", run.stderr


def test_a_variable_that_no_chip_holds_is_refused_before_it_is_made():
    step = lower_layers([400_000], rows=8, columns=100_000)
    assert step.problem is not None and step.problem.stage == "memory"
    assert step.problem.op_name == "layer_0/kernel"
    assert "takes 149.0 GiB" in step.problem.message
    assert "kernel = v1.get_variable" in step.problem.source


v1 = tf.compat.v1
SENT = (4, 8)


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
    assert {tuple(shape.dimensions) for shape in crossing.shape.tuple_shapes} == {SENT}


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

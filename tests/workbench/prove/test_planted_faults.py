"""Faults planted in a program: each is found at its first step, by the op or the variable that it is in."""

import shutil
import sys
from pathlib import Path

import pytest

from tfx_tpu_trainer import compat
from tfx_tpu_trainer.workbench.prove.proof import prove_runs
from tfx_tpu_trainer.workbench.prove.recorder import Recorder

PROGRAM = Path(__file__).with_name("program.py")

TWICE = """v1.layers.batch_normalization(
            hidden, momentum=0.9, training=training, name="normal", reuse=True
        )
        hidden = v1.layers.dropout"""

# The text in the program, its replacement, the first step that differs, and the op that the proof names.
FAULTS = {
    "learning rate off by 1e-3": ("decay(0.05,", "decay(0.05005,", 1, "rate/initial_learning_rate"),
    "label off by one row": (
        '"weight": WEIGHTS}, LABELS',
        '"weight": WEIGHTS}, np.roll(LABELS, 1, 0)',
        1,
        "IteratorGetNext:3",
    ),
    "regularizer dropped": (
        "kernel_regularizer=lambda kernel: 0.01 * tf.nn.l2_loss(kernel),",
        "",
        1,
        "hidden/kernel/Regularizer/L2Loss",
    ),
    "batch norm updated twice": (
        "hidden = v1.layers.dropout",
        TWICE,
        1,
        "normal/moving_variance",
    ),
    "features swapped": (
        '[features["a"], features["b"]]',
        '[features["b"], features["a"]]',
        1,
        "inputs",
    ),
    "another initializer": ("stddev=0.5", "stddev=0.3", 0, "hidden/kernel"),
    "another epsilon": ("epsilon=1e-3", "epsilon=1e-5", 1, "normal/batchnorm/add/y"),
    "another momentum": ("Optimizer(rate, 0.9,", "Optimizer(rate, 0.89,", 2, "Momentum/momentum"),
    "loss scaled": ("multiply(1.0,", "multiply(1.001,", 1, "total/x"),
    "decay in stairs": ("staircase=False", "staircase=True", 2, "rate/Floor"),
    "dropout missing": (
        "v1.layers.dropout(hidden, 0.3,",
        "v1.layers.dropout(hidden, 0.0,",
        1,
        "drop/dropout/Mul",
    ),
    "another dropout": ("dropout(hidden, 0.3,", "dropout(hidden, 0.31,", 1, "drop/dropout/Const"),
    "another activation": ("tf.nn.relu,", "tf.nn.leaky_relu,", 1, "hidden/LeakyRelu"),
    "bias dropped": ("use_bias=True", "use_bias=False", 0, "found/bias"),
    "Nesterov's momentum": ("use_nesterov=False", "use_nesterov=True", 1, "found/bias"),
    "weight of row 9": (
        "np.float32)\n\n\ndef rows(",
        "np.float32)\nWEIGHTS[9] = 1.01\n\n\ndef rows(",
        2,
        "IteratorGetNext:2",
    ),
    "another decay of the averages": (
        "momentum=0.9, eps",
        "momentum=0.91, eps",
        1,
        "normal/AssignMovingAvg/decay",
    ),
    "rows begin one later": (".repeat().batch", ".repeat().skip(1).batch", 1, "IteratorGetNext"),
    "inputs in bfloat16": (
        'axis=1, name="inputs")',
        'axis=1, name="inputs")\n    inputs = tf.cast(tf.cast(inputs, tf.bfloat16, name="less"), tf.float32)',
        1,
        "less",
    ),
    "gradient stopped": (
        "hidden, 1, use_bias",
        "tf.stop_gradient(hidden), 1, use_bias",
        0,
        "hidden/bias/Momentum",
    ),
    "gradients not clipped": (
        'gradients, _ = tf.clip_by_global_norm(gradients, 1.0, name="clipped")',
        "pass",
        1,
        "clipped/L2Loss",
    ),
    "one step fewer": ("steps=STEPS)", "steps=STEPS - 1)", None, "number of steps"),
    "another metric": ("metrics.mean_absolute_error", "metrics.mean_squared_error", None, "error"),
    "predictions scaled": ("found * 1.0", "found * 1.01", None, "y"),
}
CHEAP = ("learning rate off by 1e-3", "batch norm updated twice")


def side(text: str, work: Path):
    """Runs a program's text in this process, under this package."""

    def run(folder, start, probe):
        with compat.install(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["program.py", str(work), "0"])
            with Recorder(folder, start=start, probe=probe).recording():
                exec(compile(text, str(PROGRAM), "exec"), {"__name__": "__main__"})

    return run


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The program without a fault, which runs once for each step that is looked into."""
    work = tmp_path_factory.mktemp("right")
    run, records = side(PROGRAM.read_text(encoding="utf-8"), work), {}

    def run_once(folder, start, probe):
        key = str(probe)
        if key not in records:
            records[key] = work / f"record-{len(records)}"
            run(str(records[key]), start, probe)
        shutil.copytree(records[key], folder)

    return run_once


def test_a_program_equals_itself(right, tmp_path):
    proof = prove_runs(
        right, side(PROGRAM.read_text(encoding="utf-8"), tmp_path), str(tmp_path / "records")
    )
    assert proof.verdict == "equal"
    assert (proof.steps, proof.unheld, proof.partly, proof.op) == ((4, 4), [], [], None)
    compared = {each.name: each.compared for each in proof.subjects}
    # Variables after steps 0 to 4; loss, error and global_step; y; its one signature.
    assert compared["losses"] == 4
    assert compared["variables"] == 5 * compared["checkpoints"]
    assert compared["metrics"] == 3
    assert compared["predictions"] == 1
    assert compared["exports' answers"] == 1


@pytest.mark.parametrize(
    ("search", "replace", "step", "named"),
    [
        pytest.param(*fault, id=name, marks=[] if name in CHEAP else pytest.mark.matrix)
        for name, fault in FAULTS.items()
    ],
)
def test_a_fault_is_found(right, tmp_path, search, replace, step, named):
    text = PROGRAM.read_text(encoding="utf-8")
    assert text.count(search) == 1
    faulty = side(text.replace(search, replace), tmp_path)
    proof = prove_runs(right, faulty, str(tmp_path / "records"))
    assert proof.verdict == "different"
    assert proof.first.step == step
    op = proof.op
    names = [proof.first.name, *([] if op is None else [op.name, *op.missing, *op.added])]
    assert named in names

"""A training that moves between cores and the host: a model that keeps each step's loss and rows in its checkpoint.

`python -m tests.estimator.moving_model` prints the table of docs/how-to/resume-on-another-size.md.
"""

import logging
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.counting_model import KillAt, Killed
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.hooks import CheckpointInputPipelineHook

v1 = tf.compat.v1

ROWS, BATCH, STEPS = 48, 16, 25
OPTIMIZERS = {
    "adam": lambda: v1.train.AdamOptimizer(0.05),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5),
}


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """A small network; `losses` and `seen` have a line for each step, written by gradients."""
    shared = tpu.CrossShardOptimizer if params["use_tpu"] else (lambda optimizer: optimizer)
    ids, x = features["id"], features["x"]
    x = tf.transpose(x) if params.get("across") else x
    labels = features["y"] if labels is None else labels
    hidden = v1.layers.dense(x, 5, tf.tanh, kernel_initializer=_initial(1))
    hidden = params.get("layer", tf.identity)(hidden)
    logits = v1.layers.dense(hidden, 1, kernel_initializer=_initial(2))
    trained = v1.trainable_variables()
    loss = tf.reduce_mean(tf.square(logits - labels))
    step = v1.train.get_global_step()
    losses = v1.get_variable("losses", [STEPS], initializer=v1.zeros_initializer())
    seen = v1.get_variable("seen", [STEPS, ROWS], initializer=v1.zeros_initializer())
    # The gradient of what is noted of a step, times -1, is what is added to its line.
    rows = BATCH * tf.reduce_mean(tf.gather(seen[step], ids))
    noted = -losses[step] * tf.stop_gradient(loss) - rows
    average = tf.train.ExponentialMovingAverage(0.9)
    noting = shared(v1.train.GradientDescentOptimizer(1.0)).minimize(noted, var_list=[losses, seen])
    with tf.control_dependencies([noting, *v1.get_collection(v1.GraphKeys.UPDATE_OPS)]):
        train = shared(OPTIMIZERS[params["optimizer"]]()).minimize(loss, step, var_list=trained)
    with tf.control_dependencies([train]):
        train_op = average.apply(trained)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _initial(seed: int) -> Any:
    return v1.glorot_uniform_initializer(seed=seed)


def _row(number: tf.Tensor) -> Any:
    x = tf.sin(tf.cast(number, tf.float32) * tf.constant([0.1, 0.7, 1.3]))
    return {"id": number, "x": x}, x[:1] * x[1:2]


def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """The rows without end, those of this call alone where several are made, shuffled by the run's seed."""
    rows = tf.data.Dataset.range(ROWS)
    if "context" in params:
        _, number, calls, _ = params["context"].current_input_fn_deployment()
        rows = rows.shard(calls, number)
    rows = rows.shuffle(ROWS).repeat().map(_row, num_parallel_calls=2)
    return rows.batch(params["batch_size"], drop_remainder=True).prefetch(2)


def features_alone(params: dict[str, Any]) -> tf.data.Dataset:
    """The same without labels."""
    return input_fn(params).map(lambda features, labels: {**features, "y": labels})


def across(params: dict[str, Any]) -> tf.data.Dataset:
    """The same with the rows of `x` along its second axis."""
    return input_fn(params).map(
        lambda features, y: ({**features, "x": tf.transpose(features["x"])}, y)
    )


def tensors(params: dict[str, Any]) -> Any:
    """The same as tensors, which an input for each core must be."""
    return v1.data.make_one_shot_iterator(input_fn(params)).get_next()


def trained(
    folder: Any,
    cores: int,
    until: int,
    *,
    read: Any = input_fn,
    mode: str = "PER_HOST_V1",
    killed: bool = False,
    hooks: Any = lambda estimator: [],
    tpu_config: Any = None,
    batch_axis: Any = None,
    save_input_position: bool = True,
    **params: Any,
) -> Any:
    """Trains on cores, 0 for the host, until a step; returns the estimator. A kill comes two steps later."""
    config = tpu.RunConfig(
        master="emulated" if cores else "",
        model_dir=str(folder),
        save_input_position=save_input_position,
        save_checkpoints_steps=5,
        save_summary_steps=None,
        tf_random_seed=7,
        tpu_config=tpu.TPUConfig(
            num_shards=cores or None,
            iterations_per_loop=1,
            per_host_input_for_training=getattr(tpu.InputPipelineConfig, mode),
            **(tpu_config or {}),
        ),
    )
    params = {"optimizer": "adam", **params}
    estimator = tpu.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=bool(cores),
        train_batch_size=BATCH,
        params=params,
        batch_axis=batch_axis,
    )
    added = [*hooks(estimator), *([KillAt(until + 2)] if killed else [])]
    try:
        estimator.train(read, hooks=added, max_steps=until + 4 if killed else until)
        assert not killed
    except Killed:
        assert killed
    return estimator


def difference(estimator: Any, expected: Any) -> dict[str, float]:
    """Compares two checkpoints: kind of variable ("kernel", "Adam") -> largest difference, by the largest value."""
    names = expected.get_variable_names()
    assert estimator.get_variable_names() == names
    kinds: dict[str, tuple[float, float]] = {}
    for name in names:
        got, wanted = (each.get_variable_value(name) for each in (estimator, expected))
        kind = name.rpartition("/")[2]
        apart, largest = kinds.get(kind, (0.0, 0.0))
        apart = max(apart, float(np.max(np.abs(got - wanted))))
        kinds[kind] = apart, max(largest, float(np.max(np.abs(wanted))))
    return {kind: apart / largest if apart else 0.0 for kind, (apart, largest) in kinds.items()}


SIZES = (8, 4, 2, 0, 8)
"""Cores, one after the other; 0 is the host."""

MODES = ("PER_HOST_V1", "PER_HOST_V2", "PER_SHARD_V1", "SLICED", "BROADCAST")
FORMS = ("killed", "stopped", "stopped, CheckpointInputPipelineHook")


def moved(
    folder: Any,
    *,
    form: str = "killed",
    sizes: Sequence[int] = SIZES,
    steps: int = 5,
    **options: Any,
) -> dict[str, float]:
    """Trains on one size after the other, and on the first alone; returns how far the two are apart."""
    if options.get("mode") == "PER_SHARD_V1":
        options["read"] = tensors
    if "Hook" in form:
        options["hooks"] = lambda estimator: [CheckpointInputPipelineHook(estimator)]
        options["save_input_position"] = False
    last = steps * len(sizes)
    expected = trained(f"{folder}/stayed", sizes[0], last, **options)
    for until, cores in zip(range(steps, last + 1, steps), sizes, strict=True):
        killed = form == "killed" and until < last
        estimator = trained(f"{folder}/moved", cores, until, killed=killed, **options)
    return difference(estimator, expected)


_AVERAGE = "ExponentialMovingAverage"
_OTHERS = {"losses", "seen", "global_step", "kernel", "bias", _AVERAGE}


def line_of(apart: dict[str, float]) -> list[str]:
    """Returns what a line of the table has of a training: rows, loss, weights, slots, averages."""
    slots = [value for kind, value in apart.items() if kind not in _OTHERS]
    numbers = [apart["losses"], max(apart["kernel"], apart["bias"]), max(slots), apart[_AVERAGE]]
    return ["other rows" if apart["seen"] else "the same", *(f"{number:.1e}" for number in numbers)]


def _print_table() -> None:
    tf.get_logger().setLevel(logging.ERROR)
    sizes = {"8, 4, 2, host, 8": SIZES, "16, 8, 2, host, 16": (16, 8, 2, 0, 16)}
    cases = [
        ("8, 4, 2, host, 8", "PER_HOST_V1", name, form) for name in OPTIMIZERS for form in FORMS
    ]
    cases += [("8, 4, 2, host, 8", mode, "adam", "killed") for mode in MODES[1:]]
    cases += [("16, 8, 2, host, 16", mode, "adam", "killed") for mode in MODES[:3]]
    print("| cores | input mode | optimizer | form | rows | loss | weights | slots | averages |")
    print("|---|---|---|---|---|---|---|---|---|")
    for path, mode, optimizer, form in cases:
        with tempfile.TemporaryDirectory() as folder:
            apart = moved(folder, form=form, sizes=sizes[path], mode=mode, optimizer=optimizer)
        cells = [path, f"`{mode}`", optimizer, form, *line_of(apart)]
        print(f"| {' | '.join(cells)} |")
        sys.stdout.flush()


if __name__ == "__main__":
    _print_table()

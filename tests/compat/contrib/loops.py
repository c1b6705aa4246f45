"""Loops of contrib that train and evaluate, in folders. Runs with TensorFlow 1.15 too."""

import os
import tempfile
import time

import tensorflow as tf

v1 = tf.compat.v1


def _model(contrib):
    """The weight w goes to w - 0.25 * 2w, half of it, with each step; the loss is w squared."""
    weight = v1.get_variable("weight", initializer=8.0)
    loss = tf.square(weight, name="loss")
    v1.summary.scalar("loss", loss)
    optimizer = v1.train.GradientDescentOptimizer(0.25)
    return weight, contrib.slim.learning.create_train_op(loss, optimizer)


def _events(folder):
    """Tags with their steps, of all files of a folder."""
    found = []
    for name in sorted(os.listdir(folder)):
        if "tfevents" in name:
            for event in v1.train.summary_iterator(os.path.join(folder, name)):
                found += [[each.tag, event.step, each.simple_value] for each in event.summary.value]
    return sorted(found)


def _weight(folder):
    path = tf.train.latest_checkpoint(folder)
    return [os.path.basename(path), float(tf.train.load_variable(path, "weight"))]


def _slow_step(session, train_op, global_step, arguments):
    """Waits until the threads have written."""
    time.sleep(0.5)
    return session.run([train_op, arguments["should_stop"]])


def slim_training(contrib):
    folder = tempfile.mkdtemp()
    told = {}
    for steps in (3, 5):
        with tf.Graph().as_default():
            _, train_op = _model(contrib)
            # Standard services write at their own times.
            loss = contrib.slim.learning.train(
                train_op, folder, number_of_steps=steps, summary_op=None
            )
            told[str(steps)] = [float(loss), *_weight(folder)]
    with tf.Graph().as_default():
        weight, train_op = _model(contrib)
        begun = []
        told["without_a_folder"] = float(
            contrib.slim.learning.train(
                train_op,
                None,
                number_of_steps=2,
                init_fn=lambda session: begun.append(float(session.run(weight))),
            )
        )
        told["begun"] = begun
    with tf.Graph().as_default():
        _, train_op = _model(contrib)
        seen = []

        def step(session, train_op, global_step, arguments):
            loss = session.run(train_op)
            number = session.run(global_step)
            seen.append([float(loss), int(number), sorted(arguments)])
            return loss, number >= 2

        contrib.slim.learning.train(train_op, None, train_step_fn=step, number_of_steps=9)
        told["own_steps"] = seen
    written = tempfile.mkdtemp()
    with tf.Graph().as_default():
        _, train_op = _model(contrib)
        contrib.slim.learning.train(train_op, written, number_of_steps=1, train_step_fn=_slow_step)
    told["written"] = sorted({each[0] for each in _events(written) if each[0].startswith("loss")})
    with tf.Graph().as_default():
        _, train_op = _model(contrib)
        rows = v1.data.make_one_shot_iterator(tf.data.Dataset.range(4)).get_next()
        with tf.control_dependencies([rows]):
            train_op = tf.identity(train_op)
        ended = tempfile.mkdtemp()
        loss = contrib.slim.learning.train(train_op, ended, summary_op=None)
        told["end_of_input"] = float(loss)
    return told


def training(contrib):
    folder = tempfile.mkdtemp()
    with tf.Graph().as_default():
        _, train_op = _model(contrib)
        loss = contrib.training.train(
            train_op,
            folder,
            hooks=[v1.train.StopAtStepHook(num_steps=4)],
            save_summaries_steps=2,
        )
        events = [each for each in _events(folder) if each[0].startswith("loss")]
        told = {"loss": float(loss), "weight": _weight(folder), "steps": [e[1] for e in events]}
    logs = tempfile.mkdtemp()
    with tf.Graph().as_default():
        weight, _ = _model(contrib)
        count = v1.get_variable("count", initializer=0.0, collections=["local_variables"])
        counted = v1.assign_add(count, weight)
        v1.summary.scalar("sum", count)
        found = contrib.training.evaluate_repeatedly(
            folder,
            eval_ops=counted,
            final_ops={"sum": count, "weight": weight},
            hooks=[
                contrib.training.StopAfterNEvalsHook(3),
                contrib.training.SummaryAtEndHook(logs),
            ],
            max_number_of_evaluations=1,
        )
        told["evaluated"] = {key: float(each) for key, each in sorted(found.items())}
        told["events"] = [each[:2] for each in _events(logs)]
    with tf.Graph().as_default():
        weight, _ = _model(contrib)
        told["once"] = float(
            contrib.training.evaluate_once(
                tf.train.latest_checkpoint(folder), final_ops=2.0 * weight
            )
        )
    return told


def slim_evaluation(contrib):
    folder, logs = tempfile.mkdtemp(), tempfile.mkdtemp()
    with tf.Graph().as_default():
        _, train_op = _model(contrib)
        contrib.slim.learning.train(train_op, folder, number_of_steps=2, summary_op=None)
    told = {}
    with tf.Graph().as_default():
        weight, _ = _model(contrib)
        count = v1.get_variable(
            "count", initializer=0.0, trainable=False, collections=["local_variables"]
        )
        counted = v1.assign_add(count, weight)
        evaluation = contrib.slim.evaluation
        arguments = {"num_evals": 3, "eval_op": counted, "final_op": count}
        told["loop"] = float(
            evaluation.evaluation_loop(
                "", folder, logs, max_number_of_evaluations=1, eval_interval_secs=0, **arguments
            )
        )
        told["events"] = _events(logs)
    path = tf.train.latest_checkpoint(folder)
    told["no_more"] = contrib.slim.evaluation.wait_for_new_checkpoint(
        folder, path, seconds_to_sleep=0.01, timeout=0.02
    )
    return told


LOOPS = {each.__name__: each for each in (slim_training, training, slim_evaluation)}

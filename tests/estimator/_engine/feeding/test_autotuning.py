"""Where tf.data tunes a dataset: what is switched off, and what stays as the program has it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator._engine.feeding.elements import elements
from tfx_tpu_trainer.estimator._engine.feeding.autotuning import (
    MOST_UNTUNED,
    has_autotune,
    tuned_where_it_helps,
)

v1 = tf.compat.v1
AUTO = tf.data.AUTOTUNE
MANY = MOST_UNTUNED + 1


def numbers():
    return tf.data.Dataset.range(6)


def one_more(number):
    return number + 1


FORMS = {
    "map": (True, lambda n: numbers().map(one_more, num_parallel_calls=n)),
    "batch": (True, lambda n: numbers().batch(2, num_parallel_calls=n)),
    "prefetch": (True, lambda n: numbers().prefetch(n)),
    "inner_map": (
        True,
        lambda n: numbers().flat_map(
            lambda x: tf.data.Dataset.from_tensors(x).map(one_more, num_parallel_calls=n)
        ),
    ),
    "repeat": (False, lambda n: numbers().repeat(n).take(6)),
    "take": (False, lambda n: numbers().take(n)),
}


def on(dataset):
    return dataset.options().autotune.enabled


@pytest.mark.parametrize("form", FORMS)
def test_autotune_is_found_wherever_it_stands(form):
    tunable, make = FORMS[form]
    for number, expected in ((AUTO, tunable), (2, False)):
        with tf.Graph().as_default() as graph:
            made = make(number)
            assert has_autotune(graph) is expected
            assert on(tuned_where_it_helps(made, threads=MANY)) is (None if expected else False)
            assert on(tuned_where_it_helps(made, threads=MOST_UNTUNED)) is False


@pytest.mark.parametrize("form", FORMS)
def test_the_elements_are_the_same(form):
    with tf.Graph().as_default():
        made = FORMS[form][1](AUTO)
        tuned, plain = (
            [element.tolist() for element in elements(dataset)]
            for dataset in (tuned_where_it_helps(made, threads=1), made)
        )
        assert tuned == plain != []


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_program_says_stays(enabled):
    options = tf.data.Options()
    options.autotune.enabled = enabled
    with tf.Graph().as_default():
        made = numbers().with_options(options)
        assert tuned_where_it_helps(made) is made


def test_rows_are_read_ahead_as_they_were():
    kept_out = tf.data.Options()
    kept_out.experimental_optimization.inject_prefetch = False
    with tf.Graph().as_default():
        for made, ahead in (
            (numbers(), 2),
            (numbers().prefetch(5), 5),
            (numbers().prefetch(5).with_options(tf.data.Options()), 5),
            (numbers().with_options(kept_out), None),
        ):
            assert read_ahead_of(tuned_where_it_helps(made, threads=1)) == ahead


def read_ahead_of(dataset):
    """The batches that the last stage of a dataset reads ahead; `None` where it reads none."""
    op = tf.data.experimental.to_variant(dataset).op
    while op.type == "OptionsDataset":
        op = op.inputs[0].op
    return tf.get_static_value(op.inputs[1]) if op.type.startswith("Prefetch") else None


def test_a_pool_of_its_own_counts_in_place_of_the_cores():
    for threads, expected in ((MANY, None), (1, False)):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        with tf.Graph().as_default():
            made = FORMS["map"][1](AUTO).with_options(options)
            assert on(tuned_where_it_helps(made)) is expected


def test_eager_datasets_stay():
    made = numbers()
    assert tuned_where_it_helps(made) is made

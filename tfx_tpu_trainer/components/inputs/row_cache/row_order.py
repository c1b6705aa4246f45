"""The order in which a training sees its rows: each once in an epoch, another order in each epoch.

The order is a function of the seed and of the epoch, so where the input stands is a few numbers and the rows that
are about to be drawn, however many there are.
"""

from __future__ import annotations

import secrets

import tensorflow as tf

v1 = tf.compat.v1

WINDOW = 1 << 16
"""Rows that are shuffled among each other."""

CHUNK = 1 << 12
"""Rows that lie beside each other: which chunks come together in a window is shuffled as well, so that a window of a
file on disk is read in a few pieces, and not row by row."""

_EPOCHS = 1 << 20


def shuffled_row_numbers(
    count: int, *, batch_size: int, seed: int | None, window: int = WINDOW, chunk: int = CHUNK
) -> tf.data.Dataset:
    """Returns the numbers of rows for an endless training.

    Up to `WINDOW` rows are shuffled all together; of more, each window of as many has chunks from all over them, in
    an order that no other epoch has. Batches go on over the end of an epoch.
    """
    seeds = v1.get_seed(seed)
    if seeds[0] is None:
        seeds = (secrets.randbits(31), secrets.randbits(31))
    windows = -(-count // window)
    whole_chunks = count // chunk

    def rows_of_window(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        epoch, window_of_epoch = number // windows, number % windows
        fold_in = tf.random.experimental.stateless_fold_in
        of_epoch = fold_in(seed, epoch)
        begin = window_of_epoch * window
        places = tf.range(begin, tf.minimum(begin + window, count))
        if windows > 1:
            chunks = tf.range(whole_chunks, dtype=tf.int64)
            chunks = tf.random.experimental.stateless_shuffle(
                chunks, fold_in(of_epoch, 0), "philox"
            )
            in_chunks = places < whole_chunks * chunk
            moved = tf.gather(chunks, tf.where(in_chunks, places // chunk, 0)) * chunk
            rows = tf.where(in_chunks, moved + places % chunk, places)
            # The rows that fill no chunk come last: other ones in each epoch.
            turned = tf.random.stateless_uniform(
                [], fold_in(of_epoch, 1), 0, count, tf.int64, alg="philox"
            )
            places = (rows + turned) % count
        of_window = fold_in(fold_in(of_epoch, 2), window_of_epoch)
        return tf.random.experimental.stateless_shuffle(places, of_window, "philox")

    # The end tells two inputs with other numbers of rows apart, where a position is taken up.
    numbers = tf.data.Dataset.range(count * _EPOCHS)
    seeded = numbers.scan(tf.constant(seeds, tf.int64), lambda seed, number: (seed, (seed, number)))
    return seeded.map(rows_of_window).prefetch(1).rebatch(batch_size, drop_remainder=True)

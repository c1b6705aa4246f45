"""`python -m tests.serving.exporting BASE CHECKPOINT_FOLDER`: exports a model again and again, until it is killed.

Before each export it prints a line, and another one after it.
"""

import itertools
import sys

import tensorflow as tf

from tfx_tpu_trainer.estimator import export, tpu

v1 = tf.compat.v1

ROWS = [[1.0, 0.0, 2.0], [0.5, 0.5, 0.5]]
WORDS = ["a", "b"]
WIDTH = 2_000_000


def model_fn(features, labels, mode, params):
    """A model whose variables take some time to be written, with a vocabulary."""
    del labels, params
    wide = v1.get_variable("wide", [3, WIDTH], initializer=v1.ones_initializer())
    narrow = v1.get_variable("narrow", [WIDTH, 2], initializer=v1.ones_initializer())
    y = tf.matmul(tf.matmul(features["x"], wide), narrow) / WIDTH
    return tpu.TPUEstimatorSpec(mode, predictions={"y": y})


def receiver_fn(vocabulary: str) -> export.ServingInputReceiver:
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    word = v1.placeholder(tf.string, [None], name="word")
    table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            vocabulary,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        -1,
    )
    return export.ServingInputReceiver(
        {"x": x},
        {"x": x},
        host_signatures={"ids": export.HostSignature({"word": word}, {"id": table.lookup(word)})},
    )


def write_checkpoint(folder: str) -> None:
    """Saves the first values of the variables, and the vocabulary."""
    with tf.Graph().as_default(), v1.Session() as session:
        model_fn({"x": tf.constant(ROWS)}, None, "infer", {})
        v1.train.get_or_create_global_step()
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, f"{folder}/model.ckpt")
    with open(f"{folder}/words.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(WORDS))


def main() -> None:
    base, folder = sys.argv[1:]
    estimator = tpu.TPUEstimator(
        model_fn, config=tpu.RunConfig(model_dir=folder), use_tpu=False, train_batch_size=8
    )
    for _ in itertools.count():
        print("begins", flush=True)
        estimator.export_saved_model(base, lambda: receiver_fn(f"{folder}/words.txt"))
        print("ended", flush=True)


if __name__ == "__main__":
    main()

"""Implements the taxi model in Keras for the stock Trainer, as the peer of `pipelines/taxi/model.py`.

Features, layers and sizes, optimizer, steps and batches are the same; only the training differs.
"""

import json
import os

import tensorflow as tf
import tensorflow_transform as tft
import tf_keras
from tfx import v1 as tfx
from tfx_bsl.public import tfxio

from pipelines.taxi.model import CROSSES, id_sizes
from pipelines.taxi.transform.preprocessing import NUMBERS

METRICS_FILE = "keras_metrics.json"


def run_fn(fn_args: tfx.components.FnArgs) -> None:
    """Trains, evaluates on the whole eval split, and saves; the stock Trainer calls it."""
    trainer, model_settings = (fn_args.custom_config[key] for key in ("trainer", "model"))
    tf_keras.utils.set_random_seed(fn_args.custom_config["seed"])
    transform = tft.TFTransformOutput(fn_args.transform_output)

    def dataset(files: list[str], *, batch_size: int, training: bool) -> tf.data.Dataset:
        options = tfxio.TensorFlowDatasetOptions(
            batch_size=batch_size,
            label_key=trainer["label_key"],
            num_epochs=None if training else 1,
            shuffle=training,
            shuffle_buffer_size=10_000,
            drop_final_batch=training,
        )
        return fn_args.data_accessor.tf_dataset_factory(
            files, options, transform.transformed_metadata.schema
        )

    vocabulary_sizes = {
        name: transform.vocabulary_size_by_name(name) for name in ("payment_type", "company")
    }
    model = wide_and_deep(vocabulary_sizes, model_settings)
    steps = trainer["train_steps"]
    schedule = tf_keras.optimizers.schedules.CosineDecay(
        model_settings["learning_rate"], model_settings["decay_steps"]
    )
    model.compile(
        optimizer=tf_keras.optimizers.Adam(schedule),
        loss=tf_keras.losses.BinaryCrossentropy(),
        metrics=[
            tf_keras.metrics.BinaryAccuracy(name="accuracy"),
            tf_keras.metrics.AUC(name="auc", num_thresholds=1000),
        ],
    )
    train = dataset(fn_args.train_files, batch_size=trainer["train_batch_size"], training=True)
    model.fit(train, steps_per_epoch=steps, epochs=1, verbose=0)
    eval_batch = trainer["eval_batch_size"] or trainer["train_batch_size"]
    evaluation = dataset(fn_args.eval_files, batch_size=eval_batch, training=False)
    metrics = model.evaluate(evaluation, verbose=0, return_dict=True)
    model.save(fn_args.serving_model_dir, save_format="tf")
    with tf.io.gfile.GFile(os.path.join(fn_args.serving_model_dir, METRICS_FILE), "w") as file:
        file.write(json.dumps(metrics))


def wide_and_deep(vocabulary_sizes: dict[str, int], settings: dict[str, object]) -> tf_keras.Model:
    """Computes the same function of the features as `pipelines.taxi.model.wide_and_deep`, with a sigmoid."""
    layers = tf_keras.layers
    sizes = id_sizes(vocabulary_sizes)
    ids = {name: layers.Input((), dtype=tf.int64, name=f"{name}_id") for name in sizes}
    numbers = {name: layers.Input((), dtype=tf.float32, name=f"{name}_scaled") for name in NUMBERS}
    stacked = layers.Lambda(lambda columns: tf.stack(columns, axis=1))(list(numbers.values()))

    wide = [layers.Dense(1)(stacked)]
    for name, size in sizes.items():
        wide.append(layers.Embedding(size, 1, embeddings_initializer="zeros")(ids[name]))
    for first, second in CROSSES:
        crossed = ids[first] * sizes[second] + ids[second]
        width = sizes[first] * sizes[second]
        wide.append(layers.Embedding(width, 1, embeddings_initializer="zeros")(crossed))

    width = settings["embedding_size"]
    embedded = []
    for name, size in sizes.items():
        # One initializer per table: a Keras initializer returns the same values on each call.
        initializer = tf_keras.initializers.RandomNormal(stddev=width**-0.5)
        embedded.append(
            layers.Embedding(size, width, embeddings_initializer=initializer)(ids[name])
        )
    hidden = layers.Concatenate()([*embedded, stacked])
    for units in settings["hidden_units"]:
        hidden = layers.Dense(units, activation="relu")(hidden)
    logits = layers.Add()([*wide, layers.Dense(1)(hidden)])
    inputs = {tensor.name: tensor for tensor in (*ids.values(), *numbers.values())}
    return tf_keras.Model(inputs, layers.Activation("sigmoid")(logits))

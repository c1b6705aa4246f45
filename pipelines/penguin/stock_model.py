"""Trains the same model in TFX's stock Trainer, with a `run_fn` that reads, trains and exports."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx import v1 as tfx
from tfx_bsl.public import tfxio

from pipelines.penguin.model import build_model, callbacks
from pipelines.penguin.transform.preprocessing import LABEL

# The number of evaluations, and so of epochs, each a part of the steps.
_EVALUATIONS = 4


def run_fn(fn_args: tfx.components.FnArgs) -> None:
    """Trains and saves the model; the stock Trainer calls it.

    Args:
        fn_args: TFX's information on the rows, Transform's output and the folder to save in; `custom_config` has
            `params` and `batch_size`.
    """
    settings = fn_args.custom_config
    transform = tft.TFTransformOutput(fn_args.transform_output)

    def rows(files: list[str], *, training: bool) -> tf.data.Dataset:
        options = tfxio.TensorFlowDatasetOptions(
            batch_size=settings["batch_size"],
            label_key=LABEL,
            num_epochs=None if training else 1,
            shuffle=training,
            drop_final_batch=training,
        )
        schema = transform.transformed_metadata.schema
        return fn_args.data_accessor.tf_dataset_factory(files, options, schema)

    tf.keras.utils.set_random_seed(settings["seed"])
    model = build_model(settings["params"])
    model.fit(
        rows(fn_args.train_files, training=True),
        steps_per_epoch=fn_args.train_steps // _EVALUATIONS,
        epochs=_EVALUATIONS,
        validation_data=rows(fn_args.eval_files, training=False),
        callbacks=callbacks(settings["params"]),
        verbose=0,
    )
    model.save(fn_args.serving_model_dir, signatures=_signatures(model, transform))


def _signatures(model: tf.keras.Model, transform: tft.TFTransformOutput) -> dict[str, Any]:
    """Returns the signatures for a server and the Evaluator, each with serialized raw examples."""
    model.transform = transform.transform_features_layer()
    examples = tf.TensorSpec([None], tf.string, name="examples")

    @tf.function(input_signature=[examples])
    def serving_default(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = transform.raw_feature_spec()
        del spec[LABEL]
        features = model.transform(tf.io.parse_example(examples, spec))
        return {"probabilities": model({name: features[name] for name in model.input_names})}

    @tf.function(input_signature=[examples])
    def transform_features(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, transform.raw_feature_spec())
        return dict(model.transform(parsed))

    return {"serving_default": serving_default, "transform_features": transform_features}

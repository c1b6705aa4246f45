"""The model that both the original's TPUEstimator and our exporter write.

Plain TensorFlow 1 style code that runs unchanged on TensorFlow 2.15 (`record_original.py`) and on
ours, so the two SavedModels can be compared op type by op type.
"""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

COLOURS = ("red", "green", "blue")
FEATURE_SPEC = {
    "x": tf.io.FixedLenFeature([3], tf.float32),
    "colour": tf.io.FixedLenFeature([], tf.string),
}


def write_vocabulary(path: str) -> str:
    """Writes the vocabulary of `colour`, one word a line, and returns its path."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(COLOURS) + "\n")
    return path


def look_up_colour(words: tf.Tensor, vocabulary: str) -> tf.Tensor:
    """Turns words into ids through a table whose file becomes an asset of the SavedModel."""
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            vocabulary,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        num_oov_buckets=1,
    )
    return table.lookup(words)


def receiver_fn(export: Any, vocabulary: str) -> Any:
    """Builds a serving_input_receiver_fn: serialised Examples, parsed, `colour` looked up.

    Args:
        export: The module with `ServingInputReceiver`, the original's or ours.
        vocabulary: Path of the vocabulary file.
    """

    def serving_input_receiver_fn() -> Any:
        examples = v1.placeholder(tf.string, [None], name="input_example_tensor")
        features = v1.io.parse_example(examples, FEATURE_SPEC)
        ids = look_up_colour(features.pop("colour"), vocabulary)
        return export.ServingInputReceiver(
            features={"x": features["x"], "colour_id": ids},
            receiver_tensors={"examples": examples},
            receiver_tensors_alternatives={"raw": {"x": features["x"], "colour_id": ids}},
        )

    return serving_input_receiver_fn


def training_input_fn(params: Any) -> tf.data.Dataset:
    """Eight rows, repeated, in batches of `params['batch_size']`."""
    rows = tf.reshape(tf.range(24, dtype=tf.float32), [8, 3]) / 24.0
    features = {"x": rows, "colour_id": tf.range(8, dtype=tf.int64) % 4}
    data = tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(rows, axis=1)))
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def serialized_rows() -> list[bytes]:
    """Three requests; the last one's colour is not in the vocabulary."""
    rows = [([0.1, 0.2, 0.3], b"green"), ([1.0, -1.0, 0.5], b"red"), ([2.0, 2.0, 2.0], b"mauve")]
    return [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                    "colour": tf.train.Feature(bytes_list=tf.train.BytesList(value=[colour])),
                }
            )
        ).SerializeToString()
        for x, colour in rows
    ]


def serve(path: str) -> dict[str, list]:
    """Feeds `serialized_rows` to the `serve` metagraph of a SavedModel, in a session."""
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, [tf.saved_model.SERVING], path)
        signature = meta_graph.signature_def["serving_default"]
        fetches = {key: info.name for key, info in signature.outputs.items()}
        feeds = {signature.inputs["examples"].name: serialized_rows()}
        answers = session.run(fetches, feeds)
    return {key: value.tolist() for key, value in answers.items()}


def network(features: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the scores, float32 [batch, 2], and one regressed value a row, float32 [batch, 1]."""
    embedding = v1.get_variable("embedding", [4, 2], initializer=v1.ones_initializer())
    hidden = tf.concat([features["x"], tf.gather(embedding, features["colour_id"])], axis=1)
    weights = v1.get_variable(
        "weights",
        [5, 2],
        initializer=v1.constant_initializer(
            [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8], [1, 2]]
        ),
    )
    scores = tf.nn.softmax(tf.matmul(hidden, weights))
    value = v1.get_variable("slope", [1], initializer=v1.ones_initializer()) * scores[:, :1]
    return scores, value


def model_fn_for(estimator: Any, export: Any, case: str) -> Any:
    """Builds the model_fn of a recorded case.

    Args:
        estimator: The module with `TPUEstimatorSpec`.
        export: The module with the export outputs.
        case: `default` (no export_outputs) or `signatures` (all three kinds, the classes made by
            outside_compilation).
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        scores, value = network(features)
        if mode == "infer":
            predictions = {"scores": scores, "value": value}
            if case == "default":
                return estimator.TPUEstimatorSpec(mode=mode, predictions=predictions)
            best = tf.expand_dims(tf.argmax(scores, axis=1), 1)
            classes = v1.tpu.outside_compilation(tf.as_string, best)
            outputs = {
                "serving_default": export.PredictOutput(predictions),
                "classify": export.ClassificationOutput(scores=scores, classes=classes),
                "scores_only": export.ClassificationOutput(scores=scores),
                "regress": export.RegressionOutput(value),
            }
            return estimator.TPUEstimatorSpec(
                mode=mode, predictions=predictions, export_outputs=outputs
            )
        loss = tf.reduce_mean(tf.square(value[:, 0] - labels))
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(
            loss, global_step=v1.train.get_global_step()
        )
        return estimator.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)

    return model_fn

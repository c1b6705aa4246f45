"""Nothing to edit: a canned estimator, its exporters and its export."""
import os
import tempfile

import tensorflow as tf
from tensorflow import estimator as tf_estimator

COLUMNS = [tf.feature_column.numeric_column("x", shape=[2])]


def input_fn():
    rows = {"x": [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]}
    return tf.data.Dataset.from_tensor_slices((rows, [1, 0, 1, 0])).repeat(4).batch(4)


classifier = tf_estimator.DNNClassifier([4], COLUMNS)  #: works tf.estimator.DNNClassifier
receiver_fn = tf_estimator.export.build_parsing_serving_input_receiver_fn(  #: works tf.estimator.export.build_parsing_serving_input_receiver_fn
    tf.feature_column.make_parse_example_spec(COLUMNS))
exporter = tf.estimator.FinalExporter("final", receiver_fn)  #: works tf.estimator.FinalExporter
result, _ = tf.estimator.train_and_evaluate(  #: works tf.estimator.train_and_evaluate
    classifier,
    tf.estimator.TrainSpec(input_fn, max_steps=4),  #: works tf.estimator.TrainSpec
    tf.estimator.EvalSpec(input_fn, steps=None, exporters=exporter))  #: works tf.estimator.EvalSpec
assert result["global_step"] == 4
assert os.listdir(os.path.join(classifier.model_dir, "export", "final"))
classifier.export_savedmodel(tempfile.mkdtemp(), receiver_fn)  #: works .export_savedmodel()


def not_here():
    return tf.estimator.experimental.LinearSDCA("id")  #: edit tf.estimator.experimental.LinearSDCA -> Ftrl

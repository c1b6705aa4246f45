"""The doctor's advice on tf.contrib.estimator and tf.contrib.learn, followed to the letter: each program runs."""

import functools
import inspect
import re
import tempfile

import numpy as np
import pytest
import tensorflow as tf2

from tests.sweeps import mostly_swept
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.compat.doctor import Verdict, examine, repair
from tfx_tpu_trainer.compat.doctor.rules import RULES

pytestmark = pytest.mark.matrix

tf = tf2.compat.v1

X = np.random.RandomState(0).rand(32, 2).astype(np.float32)
SUM = X.sum(1)
TWO, THREE = (SUM > 1).astype(np.int64), np.digitize(SUM, [0.7, 1.2])
COLUMNS = [tf.feature_column.numeric_column("x", shape=[2])]


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with compat.install():
        yield


def rows(labels=SUM, features=None):
    features = {"x": X} if features is None else features
    return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(16)


def trained(estimator, input_fn):
    """Trains an estimator and measures it."""
    loss = estimator.train(input_fn, steps=2).evaluate(input_fn, steps=1)["loss"]
    assert np.isfinite(loss)
    return estimator


def minimized(loss, optimizer=None):
    optimizer = optimizer or tf.train.AdamOptimizer(0.1)
    return optimizer.minimize(loss, tf.train.get_global_step())


def line_fn(features, labels, mode, params):
    """A line's model_fn, of a plain Estimator."""
    prediction = tf.matmul(features["x"], tf.get_variable("w", [2, 1]))[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": prediction})
    loss = tf.reduce_mean(tf.square(prediction - labels))
    optimizer = params["optimizer"] if params else None
    return tf.estimator.EstimatorSpec(
        mode,
        predictions={"y": prediction},
        loss=loss,
        train_op=minimized(loss, optimizer),
        eval_metric_ops={"error": tf.metrics.mean_absolute_error(labels, prediction)},
    )


def line(**options):
    """An Estimator of the line, whose model_fn makes a tf.estimator.EstimatorSpec."""
    return tf.estimator.Estimator(line_fn, **options)


def serving():
    x = tf.placeholder(tf.float32, [None, 2])
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


def records():
    """A file of examples, and how they are parsed."""
    path = tempfile.mktemp(suffix=".tfrecord")
    with tf.python_io.TFRecordWriter(path) as writer:
        for row in X:
            value = tf.train.Feature(float_list=tf.train.FloatList(value=row))
            features = tf.train.Features(feature={"x": value})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return path, {"x": tf.io.FixedLenFeature([2], tf.float32)}


def with_head(head, labels):
    """A head with a canned estimator, and with the old optimizers that programs have."""
    adam = tf.train.AdamOptimizer(0.1)
    trained(tf.estimator.DNNEstimator(head, [8], COLUMNS, optimizer=adam), rows(labels))


def binary_classification_head():
    head = tf.estimator.BinaryClassHead(weight_column=None, thresholds=[0.5], loss_reduction="sum")
    with_head(head, TWO[:, None])


def logistic_regression_head():
    with_head(tf.estimator.LogisticRegressionHead(weight_column=None), SUM[:, None] / 2)


def multi_class_head():
    head = tf.estimator.MultiClassHead(3, weight_column=None, loss_reduction="sum_over_batch_size")
    with_head(head, THREE[:, None])


def multi_label_head():
    head = tf.estimator.MultiLabelHead(2, weight_column=None)
    with_head(head, np.stack([TWO, 1 - TWO], 1))


def poisson_regression_head():
    head = tf.estimator.PoissonRegressionHead(label_dimension=1, weight_column=None)
    with_head(head, THREE[:, None].astype(np.float32))


def regression_head():
    head = tf.estimator.RegressionHead(label_dimension=1, weight_column=None)
    with_head(head, SUM[:, None])


def multi_head():
    heads = [tf.estimator.RegressionHead(name="sum"), tf.estimator.BinaryClassHead(name="two")]
    head = tf.estimator.MultiHead(heads, head_weights=[1.0, 2.0])
    with_head(head, {"sum": SUM[:, None], "two": TWO[:, None]})


def recurrent():
    def model_fn(features, labels, mode):
        states = tf.keras.layers.GRU(4)(features["x"][:, :, None])
        logits = tf.keras.layers.Dense(1)(states)
        optimizer = tf.train.AdamOptimizer(0.1)
        head = tf.estimator.BinaryClassHead()
        return head.create_estimator_spec(features, mode, logits, labels, optimizer=optimizer)

    trained(tf.estimator.Estimator(model_fn), rows(TWO[:, None]))


def boosted_trees():
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    # sklearn.ensemble.HistGradientBoostingClassifier
    assert HistGradientBoostingClassifier(min_samples_leaf=2).fit(X, TWO).score(X, TWO) > 0.9
    assert HistGradientBoostingRegressor(min_samples_leaf=2).fit(X, SUM).score(X, SUM) > 0.5


def clip_gradients_by_norm():
    class Clipped(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            gradients, variables = zip(*grads_and_vars, strict=True)
            gradients, _ = tf.clip_by_global_norm(gradients, 0.01)
            return super().apply_gradients(
                zip(gradients, variables, strict=True), global_step, name
            )

    canned = tf.estimator.DNNRegressor([4], COLUMNS, optimizer=Clipped(1.0))
    in_model_fn = line(params={"optimizer": Clipped(1.0)})
    for estimator, name in ((canned, "dnn/logits/bias"), (in_model_fn, "w")):
        values = [
            estimator.train(rows(SUM + 100), steps=1).get_variable_value(name) for _ in range(2)
        ]
        # Gradients are in the hundreds.
        assert 0 < np.linalg.norm(values[1] - values[0]) <= 0.0101


def export_all_saved_models():
    estimator = line().train(rows(), steps=1)
    with tf.Graph().as_default():
        features = {"x": tf.placeholder(tf.float32, [None, 2])}
        label = tf.estimator.experimental.build_raw_supervised_input_receiver_fn(
            features, tf.placeholder(tf.float32, [None])
        )
    exported = estimator.experimental_export_all_saved_models(
        tempfile.mkdtemp(), {"eval": label, "infer": serving}
    )
    assert tf.gfile.Exists(exported + b"/saved_model.pb")


def export_saved_model_for_mode():
    estimator = line().train(rows(), steps=1)
    exported = estimator.export_saved_model(tempfile.mkdtemp(), serving, experimental_mode="infer")
    assert tf.gfile.Exists(exported + b"/saved_model.pb")


def saved_model_estimator():
    first = trained(line(), rows())
    export_dir = first.export_saved_model(tempfile.mkdtemp(), serving)
    second = tf.estimator.Estimator(line_fn, warm_start_from=export_dir)
    second.train(rows(), steps=1)
    weights = [each.get_variable_value("w") for each in (first, second)]
    # Adam's first step is its learning rate.
    np.testing.assert_allclose(*weights, atol=0.11)


def mirrored():
    config = tf.estimator.RunConfig(train_distribute=tf2.distribute.MirroredStrategy())
    trained(line(config=config), rows())


def experiment():
    estimator = line()
    train_spec = tf.estimator.TrainSpec(rows(), 3)
    tf.estimator.train_and_evaluate(estimator, train_spec, tf.estimator.EvalSpec(rows(), steps=1))
    assert estimator.get_variable_value("global_step") == 3


def estimator_of_learn():
    """Its model_fn returns a tf.estimator.EstimatorSpec."""
    trained(tf.estimator.Estimator(line_fn, tempfile.mkdtemp(), None, {"optimizer": None}), rows())


def run_config():
    session_config = tf.ConfigProto(
        inter_op_parallelism_threads=1,
        gpu_options=tf.GPUOptions(per_process_gpu_memory_fraction=0.5),
    )
    config = tf.estimator.RunConfig(
        model_dir=tempfile.mkdtemp(), save_checkpoints_steps=2, session_config=session_config
    )
    trained(line(config=config), rows())


def canned(name):
    """A canned estimator of contrib.learn with the loss that it had, the mean."""
    columns = [tf.feature_column.numeric_column("x", shape=[2])]
    parts = {
        "Linear": {"feature_columns": columns},
        "DNN": {"feature_columns": columns, "hidden_units": [4]},
        "DNNLinearCombined": {
            "linear_feature_columns": columns,
            "dnn_feature_columns": columns,
            "dnn_hidden_units": [4],
        },
    }[re.sub("Classifier|Regressor", "", name)]
    mean = tf.losses.Reduction.SUM_OVER_BATCH_SIZE
    estimator = getattr(tf.estimator, name)(loss_reduction=mean, **parts)
    labels = TWO if "Classifier" in name else SUM
    metrics = trained(estimator, rows(labels)).evaluate(rows(labels), steps=2)
    assert metrics["loss"] == pytest.approx(metrics["average_loss"])


def metric_spec():
    def metric_fn(labels, predictions):
        return {"squared": tf.metrics.mean_squared_error(labels, predictions["y"])}

    estimator = tf.estimator.add_metrics(line().train(rows(), steps=1), metric_fn)
    # "error" is one of the eval_metric_ops of its tf.estimator.EstimatorSpec.
    assert {"squared", "error"} <= set(estimator.evaluate(rows(), steps=1))


def input_fn_ops():
    def receiver_fn():
        features = {"x": tf.placeholder(tf.float32, [None, 2])}
        return tf.estimator.export.ServingInputReceiver(features, features)

    line().train(rows(), steps=1).export_saved_model(tempfile.mkdtemp(), receiver_fn)


def export_strategy():
    exporter = tf.estimator.LatestExporter("name", serving)
    spec = tf.estimator.EvalSpec(rows(), exporters=exporter, steps=1)
    estimator = line()
    tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(rows(), 1), spec)
    assert len(tf.gfile.ListDirectory(f"{estimator.model_dir}/export/name")) == 1


def parsing_serving_input():
    _, feature_spec = records()
    receiver_fn = tf.estimator.export.build_parsing_serving_input_receiver_fn(feature_spec)
    line().train(rows(), steps=1).export_saved_model(tempfile.mkdtemp(), receiver_fn)


def read_examples():
    files, features = records()
    batches = tf.data.TFRecordDataset(files).shuffle(1000).repeat().batch(4)
    (examples,) = batches.take(1)
    assert tf.io.parse_example(examples, features)["x"].shape == (4, 2)


def read_features():
    files, features = records()
    batches = tf.data.experimental.make_batched_features_dataset(files, 4, features)
    (read,) = batches.take(1)
    assert read["x"].shape == (4, 2)


def vocabulary():
    layer = tf.compat.v2.keras.layers.TextVectorization(output_sequence_length=3)
    layer.adapt(["a b", "b c"])
    ids = layer(["b b", "z"]).numpy()
    # 0 pads, 1 is for words that are not known, 2 the most frequent one.
    assert ids.tolist() == [[2, 2, 0], [1, 0, 0]]


def layers():
    lookup = tf.compat.v2.keras.layers.StringLookup(vocabulary=["a", "b"])
    assert lookup(["b", "z"]).numpy().tolist() == [2, 0]


FOLLOWED = {
    "estimator": {
        "SavedModelEstimator": saved_model_estimator,
        "TowerOptimizer": mirrored,
        "binary_classification_head": binary_classification_head,
        "boosted_trees_classifier_train_in_memory": boosted_trees,
        "boosted_trees_regressor_train_in_memory": boosted_trees,
        "clip_gradients_by_norm": clip_gradients_by_norm,
        "export_all_saved_models": export_all_saved_models,
        "export_saved_model_for_mode": export_saved_model_for_mode,
        "logistic_regression_head": logistic_regression_head,
        "multi_class_head": multi_class_head,
        "multi_head": multi_head,
        "multi_label_head": multi_label_head,
        "poisson_regression_head": poisson_regression_head,
        "regression_head": regression_head,
        "replicate_model_fn": mirrored,
        "RNNClassifier": recurrent,
        "RNNEstimator": recurrent,
    },
    "learn": {
        "": estimator_of_learn,
        "Estimator": estimator_of_learn,
        "Experiment": experiment,
        "learn_runner": experiment,
        "RunConfig": run_config,
        **{
            f"{model}{kind}": functools.partial(canned, f"{model}{kind}")
            for model in ("DNN", "DNNLinearCombined", "Linear")
            for kind in ("Classifier", "Regressor")
        },
        "ModelFnOps": estimator_of_learn,
        "MetricSpec": metric_spec,
        "InputFnOps": input_fn_ops,
        "build_parsing_serving_input_fn": parsing_serving_input,
        "make_export_strategy": export_strategy,
        "read_batch_examples": read_examples,
        "read_batch_features": read_features,
        "read_batch_record_features": read_features,
        "VocabularyProcessor": vocabulary,
        "preprocessing": layers,
    },
}


def contrib(part, name):
    return f"tensorflow.contrib.{part}.{name}".rstrip(".")


PROGRAMS = {
    f"{part}-{name}": (part, name, program)
    for part, programs in FOLLOWED.items()
    for name, program in programs.items()
}
# One of each kind; the others go the same way.
QUICK = [
    "estimator-clip_gradients_by_norm",
    "estimator-regression_head",
    "learn-LinearClassifier",
    "learn-VocabularyProcessor",
    "learn-read_batch_examples",
    "learn-read_batch_features",
]


@pytest.mark.parametrize("place", PROGRAMS)
def test_the_program_that_follows_an_advice_is_written_as_it_says(place):
    part, name, program = PROGRAMS[place]
    text = inspect.getsource(getattr(program, "func", program)) + repr(getattr(program, "args", ""))
    told = re.findall(r"\b(?:tf|sklearn|estimator)(?:\.\w+)+", RULES[contrib(part, name)].edit)
    assert told
    assert [each for each in told if each.rpartition(".")[2] not in text] == []


@mostly_swept("place", PROGRAMS, kept=QUICK)
def test_the_advice_can_be_followed(place):
    PROGRAMS[place][2]()


def test_each_advice_is_followed():
    by_hand = {name for name, advice in RULES.items() if advice.becomes is None}
    programs = {contrib(part, name) for part, names in FOLLOWED.items() for name in names}
    told = {RULES[name].edit for name in programs}
    rules = {
        name for name in by_hand if re.match(r"tensorflow\.contrib\.(estimator|learn)\b", name)
    }
    # The whole of tf.contrib.estimator: nothing is said that could be followed.
    left = {name for name in rules if RULES[name].edit not in told}
    assert left == {"tensorflow.contrib.estimator"}


@pytest.mark.parametrize(
    "name",
    [
        "learn_runner.run",
        "python.learn.learn_runner.run",
        "io.read_batch_features",
        "python.learn.utils.saved_model_export_utils.make_export_strategy",
        "utils.input_fn_utils.build_parsing_serving_input_fn",
        "preprocessing.VocabularyProcessor",
    ],
)
def test_a_name_in_a_module_of_learn_has_its_own_advice(name):
    module, _, last = f"tensorflow.contrib.learn.{name}".rpartition(".")
    (told,) = examine(f"from {module} import {last}\n{last}()\n")
    assert told.verdict is Verdict.EDIT
    assert told.edit != RULES["tensorflow.contrib.learn"].edit


REPAIRED = """
import tensorflow as tf
from tensorflow.contrib import learn
from tensorflow.contrib.learn import ModeKeys

def input_fn():
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x, "key": key}, labels))
    return dataset.repeat().batch(16)

def receiver():
    features = {"x": tf.placeholder(tf.float32, [None, 2]), "key": tf.placeholder(tf.int64, [None])}
    return tf.estimator.export.ServingInputReceiver(features, features)

columns = [tf.feature_column.numeric_column("x", shape=[2])]
estimator = tf.estimator.DNNRegressor([4], columns)
estimator = tf.contrib.estimator.forward_features(estimator, "key")
estimator.train(input_fn, max_steps=3)
keys = [row["key"] for row, _ in zip(estimator.predict(input_fn), range(32))]
exported = estimator.export_savedmodel(estimator.model_dir + "/export", receiver)
measured = tf.contrib.estimator.read_eval_metrics(estimator.eval_dir())
modes = [ModeKeys.TRAIN, learn.ModeKeys.INFER]
"""


def test_a_repaired_program_forwards_its_keys():
    repaired = repair(REPAIRED)
    assert [each.name for each in repaired.left if each.verdict is Verdict.EDIT] == []
    names = {"x": X, "key": np.arange(32), "labels": SUM}
    exec(compile(repaired.text, "program", "exec"), names)
    assert names["keys"] == list(range(32))
    with tf.Session(graph=tf.Graph()) as session:
        model = tf.saved_model.load(session, ["serve"], names["exported"])
    outputs = {name: sorted(each.outputs) for name, each in model.signature_def.items()}
    assert outputs == {"predict": ["key", "predictions"]}
    assert (names["measured"], names["modes"]) == ({}, ["train", "infer"])

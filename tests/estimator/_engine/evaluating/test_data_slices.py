import functools
import gc

import numpy as np
import pytest
import tensorflow as tf

from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.data_slices import (
    Slice,
    slice_eval_metrics,
    slice_membership,
    split_by_slice,
)

v1 = tf.compat.v1


def _members(features, *slices):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = features()
        return session.run(slice_membership(made, slices))


def _slice(*conditions, excluded=()):
    return Slice(name=str(conditions), conditions=conditions, excluded=excluded)


def _dense():
    return {
        "text": tf.constant([["a"], ["b"], ["a"]]),
        "number": tf.constant([1, 2, 2], tf.int64),
        "share": tf.constant([0.1, 0.2, 0.1]),
        "flag": tf.constant([True, False, True]),
    }


def test_dense_features_of_all_kinds():
    members = _members(
        _dense,
        _slice(("text", "a")),
        _slice(("number", 2)),
        # The value as float32 has it.
        _slice(("share", float(np.float32(0.1)))),
        _slice(("flag", 1)),
        _slice(("text", "a"), ("number", 2)),
        _slice(("text", "z")),
    )
    assert members.dtype == np.int32
    assert members.T.tolist() == [[1, 0, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_rows_with_several_values_or_none():
    def sparse():
        return {"tags": tf.ragged.constant([["a", "b"], [], ["b"]]).to_sparse()}

    def ragged():
        return {"tags": tf.ragged.constant([["a", "b"], [], ["b"]])}

    for features in (sparse, ragged):
        members = _members(
            features,
            _slice(("tags", "a")),
            _slice(("tags", "b")),
            _slice(("tags", None)),
            _slice(("tags", "")),
        )
        assert members.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 0]]


def test_excluded():
    named = (("text", "a"),), (("number", 1),)
    other = _slice(("text", None), excluded=named)
    members = _members(_dense, _slice(("text", "a")), other, _slice(("number", 1)))
    assert members.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_a_batch_without_rows():
    members = _members(lambda: {"number": tf.zeros([0, 1], tf.int64)}, _slice(("number", 0)))
    assert members.shape == (0, 1)


def test_static_rows_stay_known():
    with tf.Graph().as_default():
        assert slice_membership(_dense(), [_slice(("number", 1))]).shape == [3, 1]
        unknown = tf.compat.v1.placeholder(tf.int64, [None, 1])
        members = slice_membership({"number": unknown}, [_slice(("number", 1))])
        assert members.shape.as_list() == [None, 1]


def _measured(metric_fn, tensors, membership, names):
    """The metrics after one update."""
    function, given = slice_eval_metrics(metric_fn, tensors, tf.constant(membership), names)
    metrics = function(**given)
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        session.run([update for _, update in metrics.values()])
        return session.run({name: value for name, (value, _) in metrics.items()})


def _mean(values, weights=None):
    return {"mean": v1.metrics.mean(values, weights)}


@pytest.mark.parametrize("form", [list, dict])
def test_each_slice_is_measured_on_its_rows(form):
    values, weights = np.float32([1, 2, 3, 4]), np.float32([1, 1, 1, 3])
    membership = np.int32([[1, 0], [1, 1], [0, 0], [0, 1]])
    with tf.Graph().as_default():
        tensors = {"values": tf.constant(values), "weights": tf.constant(weights)}
        given = tensors if form is dict else list(tensors.values())
        found = _measured(_mean, given, membership, ["a", "b"])
    overall, (a, b) = split_by_slice(found, ["a", "b"])
    assert overall == {"mean": np.average(values, weights=weights)}
    assert a == {"mean": 1.5, "example_count": 2}
    assert b == {"mean": np.average([2, 4], weights=[1, 3]), "example_count": 2}


def test_a_name_with_a_slash_belongs_to_its_own_slice():
    values = {"m": 0, "x/m": 1, "m/a": 2, "x/m/a": 3, "example_count/a": 4}
    assert split_by_slice(values, ["a"]) == (
        {"m": 0, "x/m": 1},
        [{"m": 2, "x/m": 3, "example_count": 4}],
    )


@pytest.mark.parametrize("on_this_host", [True, False])
def test_metrics_named_as_a_slices_are_refused_and_no_graph_stays_open(on_this_host):
    def metric_fn(values):
        return {"m": v1.metrics.mean(values), "m/a": v1.metrics.mean(values)}

    with tf.Graph().as_default():
        function, given = slice_eval_metrics(
            metric_fn, [tf.zeros(1)], tf.constant([[1]]), ["a"], on_this_host=on_this_host
        )
        with pytest.raises(ValueError, match="metric 'm/a', which is the name") as error:
            function(**given)
    # The frames of an error live as long as it does.
    del error
    gc.collect()
    assert tf.executing_eagerly()


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (lambda: tf.constant(1.0), "does not have the rows of the batch on axis 0"),
        (lambda: tf.zeros([3, 2]), "does not have the rows of the batch on axis 0"),
        (lambda: tf.sparse.from_dense([[1.0], [2.0]]), "has a SparseTensor"),
    ],
)
def test_tensors_without_rows_are_refused(tensor, says):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=says):
        _measured(_mean, [tensor()], np.int32([[1], [0]]), ["a"])


NAMES = ["a", "b", "none"]
GENERATOR = np.random.default_rng(5)
BATCHES = [
    {
        "labels": GENERATOR.integers(0, 2, rows),
        "scores": GENERATOR.uniform(0, 1, rows).astype(np.float32),
        "weights": GENERATOR.uniform(0, 2, rows).astype(np.float32),
        "texts": np.array([[b"x", b"longer"][i % 2] for i in range(rows)], object),
        "tokens": GENERATOR.integers(0, 3, (rows, 2 + rows % 3)),
        "membership": np.stack([np.arange(rows) % 2, np.arange(rows) % 3 == 0, np.zeros(rows)], 1),
    }
    for rows in (8, 8, 1, 0, 7, 5)
]
# Of slice "b" a batch has no row.
BATCHES[1]["membership"][:, 1] = 0


def v1_metrics(labels, scores, weights, texts, tokens):
    scores = tf.debugging.check_numerics(scores, "no number")
    predicted = tf.cast(scores > 0.5, tf.int64)
    return {
        "mean": v1.metrics.mean(scores, weights),
        "accuracy": v1.metrics.accuracy(labels, predicted, weights),
        "auc": v1.metrics.auc(labels, scores),
        "precision": v1.metrics.precision_at_thresholds(labels, scores, [0.2, 0.5, 0.8]),
        "by_class": v1.metrics.mean_per_class_accuracy(labels, predicted, 2),
        "rmse": v1.metrics.root_mean_squared_error(tf.cast(labels, tf.float32), scores),
        "x": v1.metrics.mean(tf.cast(tf.equal(texts, "x"), tf.float32)),
        "tokens": v1.metrics.mean_iou(tokens, tf.reverse(tokens, [1]), 3),
        "in a dict": (
            {"sum": v1.metrics.mean(scores)[0], "two": [v1.metrics.mean(weights)[0]]},
            tf.no_op(),
        ),
    }


def keras_metrics(labels, scores, weights, texts, tokens):
    del texts
    mean, auc = tf.keras.metrics.Mean(), tf.keras.metrics.AUC(num_thresholds=20)
    iou = tf.keras.metrics.MeanIoU(3)
    mean.update_state(scores, sample_weight=weights)
    auc.update_state(labels, scores)
    iou.update_state(tokens, tf.reverse(tokens, [1]))
    return {"mean": mean, "auc": auc, "iou": iou}


def mean_of_means(labels, scores, weights, texts, tokens):
    del labels, texts, tokens
    weighs = tf.math.divide_no_nan(tf.reduce_sum(scores * weights), tf.reduce_sum(weights))
    return {"mean": v1.metrics.mean(weighs), "largest": v1.metrics.mean(tf.reduce_max(scores))}


class Counted:
    """A metric_fn that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, **tensors):
        self.calls += 1
        return self.function(**tensors)


# Batches of evaluations, one after the other in a session.
EVALUATIONS = {"all": BATCHES, "none": [], "one row": BATCHES[2:3], "again": BATCHES}


def measured(metric_fn, *, evaluations=EVALUATIONS, config=None, **options):
    """The metrics of each evaluation, after an update with each batch."""
    with tf.Graph().as_default():
        v1.train.create_global_step()
        fed = {
            name: v1.placeholder(
                tf.string if value.dtype == object else value.dtype, [None] * value.ndim
            )
            for name, value in BATCHES[0].items()
        }
        tensors = {name: tensor for name, tensor in fed.items() if name != "membership"}
        membership = tf.ensure_shape(tf.cast(fed["membership"], tf.int32), [None, 3])
        function, given = slice_eval_metrics(metric_fn, tensors, membership, NAMES, **options)
        values, updates = metric_ops.split(function(**given))
        with v1.Session(config=config) as session:
            session.run(v1.tables_initializer())
            initialize, found = v1.local_variables_initializer(), {}
            for evaluation, batches in evaluations.items():
                session.run(initialize)
                for batch in batches:
                    session.run(updates, {fed[name]: value for name, value in batch.items()})
                found[evaluation] = session.run(values)
            return found


@functools.cache
def _in_the_models_graph(metric_fn):
    return measured(metric_fn, on_this_host=False)


def assert_equal(found, expected, *, rtol=0.0):
    assert found.keys() == expected.keys()
    tf.nest.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=rtol), found, expected
    )


@pytest.mark.parametrize("metric_fn", [v1_metrics, keras_metrics, mean_of_means])
class TestApart:
    def test_gives_what_the_models_graph_does(self, metric_fn):
        counted = Counted(metric_fn)
        found = measured(counted)
        assert counted.calls == 2
        # A mean of means has the same bits: its batches stay apart.
        rtol = 0.0 if metric_fn is mean_of_means else 1e-6
        assert_equal(found, _in_the_models_graph(metric_fn), rtol=rtol)
        rows = sum(batch["membership"][:, 0].sum() for batch in BATCHES)
        assert found["again"]["example_count/a"] == rows
        assert found["again"]["example_count/none"] == found["none"]["example_count/a"] == 0

    @mostly_swept("most_bytes", [1, 400], kept=[400])
    def test_gives_it_where_rows_are_counted_many_times(self, metric_fn, most_bytes):
        found = measured(metric_fn, most_bytes=most_bytes)
        # Of one batch each time the sums are the same ones.
        rtol = 0.0 if most_bytes == 1 else 1e-6
        assert_equal(found, _in_the_models_graph(metric_fn), rtol=rtol)


def _looks_up(texts, **rest):
    pairs = tf.lookup.KeyValueTensorInitializer(["x", "longer"], [1.0, 2.0])
    return {"m": v1.metrics.mean(tf.lookup.StaticHashTable(pairs, 0.0).lookup(texts))}


def test_tables_that_never_change_are_filled_apart_too():
    counted = Counted(_looks_up)
    found = measured(counted)
    assert counted.calls == 2
    assert_equal(found, _in_the_models_graph(_looks_up), rtol=1e-6)
    assert found["all"]["m/a"] == 2
    assert 1 < found["all"]["m/b"] < 2


def test_slices_are_measured_where_the_session_has_one_thread():
    one = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    assert_equal(measured(mean_of_means, config=one), _in_the_models_graph(mean_of_means))


def test_values_can_be_read_on_the_way():
    with tf.Graph().as_default():
        fed = v1.placeholder(tf.float32, [None])
        membership = tf.ones([tf.size(fed), 1], tf.int32)
        function, given = slice_eval_metrics(_mean, [fed], membership, ["a"])
        metrics = function(**given)
        value, update = metrics["mean/a"]
        count, _ = metrics["example_count/a"]
        with v1.Session() as session:
            session.run(v1.local_variables_initializer())
            found = []
            for rows in ([1, 2, 3], [4, 5, 6]):
                session.run(update, {fed: rows})
                found.append(session.run((value, count)))
    assert found == [(2.0, 3), (3.5, 6)]


class TestInTheModelsGraph:
    """Metric functions that can't be called apart are called there once for each slice."""

    def _reads_a_tensor(self, scores, **rest):
        return {"m": v1.metrics.mean(scores * self.factor())}

    def _reads_the_step(self, scores, **rest):
        return {"m": v1.metrics.mean(scores + tf.cast(v1.train.get_global_step(), tf.float32))}

    def _draws(self, scores, **rest):
        return {"m": v1.metrics.mean(scores, tf.cast(tf.random.uniform([]) > 0.5, tf.float32))}

    def _has_a_table_that_changes(self, texts, **rest):
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
        return {"m": (table.size(), table.insert(texts, tf.zeros_like(texts, tf.float32)))}

    def _runs_python(self, scores, **rest):
        return {"m": v1.metrics.mean(tf.numpy_function(lambda x: x, [scores], tf.float32))}

    def _runs_python_in_a_function(self, scores, **rest):
        @tf.function
        def doubled(x):
            return tf.numpy_function(lambda x: 2 * x, [x], tf.float32)

        return {"m": v1.metrics.mean(doubled(scores))}

    def _has_a_global_variable(self, scores, **rest):
        total = v1.get_variable("total", (), initializer=v1.zeros_initializer())
        return {"m": (total.read_value(), total.assign_add(tf.reduce_sum(scores)))}

    def _gives_a_value_of_the_batch(self, scores, **rest):
        return {"m": (tf.reduce_sum(scores), tf.no_op())}

    def _has_a_variable_of_any_size(self, scores, **rest):
        last = v1.Variable(
            [0.0], validate_shape=False, collections=[v1.GraphKeys.LOCAL_VARIABLES], shape=[None]
        )
        return {"m": (tf.reduce_sum(last), last.assign(scores))}

    @pytest.mark.parametrize(
        "name", [name for name in list(locals()) if name.startswith("_") and name[1] != "_"]
    )
    def test_where_a_metric_fn(self, name):
        with tf.Graph().as_default():
            v1.train.create_global_step()
            self.factor = functools.cache(lambda: tf.constant(2.0))
            counted = Counted(getattr(self, name))
            tensors = {"scores": tf.zeros([2]), "texts": tf.constant(["x", "y"])}
            membership = tf.ones([2, 3], tf.int32)
            function, given = slice_eval_metrics(counted, tensors, membership, NAMES)
            function(**given)
        assert counted.calls == 2 + len(NAMES)

    def test_its_slices_have_its_values(self):
        self.factor = functools.cache(lambda: tf.constant(2.0))
        found = measured(self._reads_a_tensor)["all"]
        for index, name in enumerate(NAMES[:2]):
            rows = [batch["scores"][batch["membership"][:, index] != 0] for batch in BATCHES]
            assert found[f"m/{name}"] == pytest.approx(2 * np.mean(np.concatenate(rows)))


def _fails_on_few_rows(scores, **rest):
    enough = v1.debugging.assert_greater(tf.size(scores), 3, message="too few scores")
    with tf.control_dependencies([enough]):
        scores = tf.identity(scores)
    return {"m": v1.metrics.mean(scores)}


def test_an_error_names_the_slice():
    batch = {name: value[:8] for name, value in BATCHES[0].items()}
    batch["membership"] = batch["membership"].copy()
    batch["membership"][:, 2] = np.arange(8) < 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="too few scores") as error:
        measured(_fails_on_few_rows, evaluations={"all": [batch]})
    assert "metric_fn fails on the rows of slice 'b'" in str(error.value)

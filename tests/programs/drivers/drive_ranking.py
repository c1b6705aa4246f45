"""TensorFlow Ranking: a groupwise model with its head.

Words: a folder, the number of cores.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow_ranking as tfr

from tests.programs.drivers.calls import Calls

FOLDER = sys.argv[1]
RANDOM = np.random.default_rng(0)
LISTS, SIZE = 16, 5
CONTEXT = RANDOM.normal(size=(LISTS, 2)).astype(np.float32)
ITEMS = RANDOM.normal(size=(LISTS, SIZE, 3)).astype(np.float32)
RELEVANCE = np.clip(np.round(ITEMS.sum(axis=2)), 0, 3).astype(np.float32)
CONTEXT_COLUMNS = {"query": tf.feature_column.numeric_column("query", [2])}
ITEM_COLUMNS = {"item": tf.feature_column.numeric_column("item", [3])}


def rows():
    features = {"query": CONTEXT, "item": ITEMS}
    return tf.data.Dataset.from_tensor_slices((features, RELEVANCE)).repeat().batch(8)


def rows_once():
    return tf.data.Dataset.from_tensor_slices({"query": CONTEXT, "item": ITEMS}).batch(8)


def transform(features, mode):
    return tfr.feature.encode_listwise_features(
        features,
        input_size=SIZE,
        context_feature_columns=CONTEXT_COLUMNS,
        example_feature_columns=ITEM_COLUMNS,
        mode=mode,
    )


def score(context, group, mode, params, config):
    inputs = [tf.layers.flatten(value) for value in (*context.values(), *group.values())]
    hidden = tf.layers.dense(tf.concat(inputs, axis=1), 8, tf.nn.relu)
    return tf.layers.dense(hidden, 2)


def groupwise():
    head = tfr.head.create_ranking_head(
        loss_fn=tfr.losses.make_loss_fn(tfr.losses.RankingLossKey.PAIRWISE_LOGISTIC_LOSS),
        eval_metric_fns={
            "ndcg": tfr.metrics.make_ranking_metric_fn(tfr.metrics.RankingMetricKey.NDCG, topn=3)
        },
        optimizer=tf.train.AdagradOptimizer(0.1),
    )
    model_fn = tfr.model.make_groupwise_ranking_fn(
        group_score_fn=score, group_size=2, transform_fn=transform, ranking_head=head
    )
    return tf.estimator.Estimator(model_fn, FOLDER, tf.estimator.RunConfig(tf_random_seed=1))


def receiver():
    query = tf.placeholder(tf.float32, [None, 2])
    item = tf.placeholder(tf.float32, [None, SIZE, 3])
    features = {"query": query, "item": item}
    return tf.estimator.export.ServingInputReceiver(features, features)


calls = Calls(groupwise)
calls.train_and_resume(rows)
calls.evaluate(rows, steps=4, names=["ndcg"])
calls.predict(rows_once, rows=LISTS)
calls.export(receiver, {"query": CONTEXT[:3], "item": ITEMS[:3]}, signature="predict")
calls.finish()

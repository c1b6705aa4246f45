"""What programs use of contrib besides layers. Runs with TensorFlow 1.15 too."""

import numpy as np
import tensorflow as tf

from tests.compat.contrib.graph_facts import input_values

v1 = tf.compat.v1


def _batches(*shape):
    """Other numbers with every step."""
    step = v1.get_variable(
        "step",
        [],
        tf.int32,
        v1.zeros_initializer(),
        trainable=False,
        collections=["local_variables"],
    )
    rows = tf.constant(input_values(3, *shape))
    with tf.control_dependencies([v1.assign_add(step, 1)]):
        return tf.identity(rows[tf.math.mod(step.read_value(), 3)])


def _metric_case(name, metric, states=False):
    def case(contrib):
        numbers = _batches(2, 8)
        predictions, labels = tf.unstack(tf.sigmoid(3.0 * numbers))
        value, update = metric(contrib.metrics, predictions, labels)
        fetches = {"update": update, "then value": value}
        for each in v1.get_collection("metric_variables") if states else ():
            fetches["then " + each.op.name] = each
        return fetches

    case.__name__ = name
    case.fill = False
    case.steps = 3
    return case


def _weights():
    return tf.constant([0.0, 1.0, 2.0, 1.0, 1.0, 0.5, 1.0, 1.0])


METRICS = (
    _metric_case("pearson", lambda m, p, y: m.streaming_pearson_correlation(p, y), states=True),
    _metric_case(
        "pearson_weighted", lambda m, p, y: m.streaming_pearson_correlation(p, y, _weights())
    ),
    _metric_case(
        "covariance", lambda m, p, y: m.streaming_covariance(p, y, name="mine"), states=True
    ),
    _metric_case("concat", lambda m, p, y: m.streaming_concat(p)),
    _metric_case("concat_some", lambda m, p, y: m.streaming_concat(p, max_size=11)),
    _metric_case("auc", lambda m, p, y: m.streaming_auc(p, y > 0.5)),
    _metric_case("precision", lambda m, p, y: m.streaming_precision(p > 0.3, y > 0.5)),
    _metric_case("recall", lambda m, p, y: m.streaming_recall(p > 0.3, y > 0.5, _weights())),
    _metric_case("less", lambda m, p, y: m.streaming_percentage_less(p, 0.5)),
    _metric_case(
        "iou",
        lambda m, p, y: m.streaming_mean_iou(
            tf.cast(p > 0.3, tf.int64), tf.cast(y > 0.5, tf.int64), 2
        ),
    ),
    _metric_case("relative", lambda m, p, y: m.streaming_mean_relative_error(p, y, y)),
    _metric_case("misses", lambda m, p, y: m.streaming_false_negatives(p > 0.6, y > 0.5)),
)


def batch_metrics(contrib):
    predictions, labels = tf.constant([1, 2, 2, 0]), tf.constant([1, 2, 0, 0])
    mapped = contrib.metrics.aggregate_metric_map({"mean": contrib.metrics.streaming_mean(labels)})
    return {
        "confusion": contrib.metrics.confusion_matrix(labels, predictions),
        "mean": mapped[1]["mean"],
    }


def _optimizer_case(name, make):
    def case(contrib):
        weight = v1.get_variable("weight", initializer=tf.constant([[0.5, -0.3], [0.2, 1.0]]))
        bias = v1.get_variable("bias", initializer=tf.constant([0.5, -1.0]))
        loss = tf.reduce_sum(tf.square(weight - 0.7)) + tf.reduce_sum(tf.square(bias))
        train = make(contrib.opt, loss, weight, bias)
        fetches = {"train": getattr(train, "op", train)}
        for each in v1.global_variables():
            fetches["then " + each.op.name] = each
        return fetches

    case.__name__ = name
    case.fill = False
    case.steps = 3
    return case


def _extended(opt, loss, weight, bias):
    optimizer = opt.extend_with_decoupled_weight_decay(v1.train.GradientDescentOptimizer)
    return optimizer(weight_decay=0.01, learning_rate=0.1).minimize(loss)


def _averaged(opt, loss, weight, bias):
    optimizer = opt.MovingAverageOptimizer(v1.train.AdamOptimizer(0.1), average_decay=0.5)
    return optimizer.minimize(loss)


OPTIMIZERS = (
    _optimizer_case("averaged", _averaged),
    _optimizer_case("adam_w", lambda opt, loss, w, b: opt.AdamWOptimizer(0.01, 0.1).minimize(loss)),
    _optimizer_case(
        "adam_w_of_one",
        # minimize() of the original forgets which variables to decay.
        lambda opt, loss, w, b: opt.AdamWOptimizer(0.01, 0.1).apply_gradients(
            zip(v1.gradients(loss, [w, b]), [w, b]), decay_var_list=[w]
        ),
    ),
    _optimizer_case("extended", _extended),
)


def sequences(contrib):
    logits = tf.constant(input_values(2, 3, 4))
    targets = tf.constant([[1, 3, 0], [2, 2, 1]])
    weights = tf.constant([[1.0, 1.0, 0.0], [1.0, 0.5, 1.0]])
    loss = contrib.seq2seq.sequence_loss
    return {
        "mean": loss(logits, targets, weights),
        "over_time": loss(logits, targets, weights, average_across_batch=False),
        "over_batch": loss(logits, targets, weights, average_across_timesteps=False),
        "none": loss(logits, targets, weights, False, False),
        "sum": loss(logits, targets, weights, False, False, True, True),
        "sum_over_time": loss(logits, targets, weights, False, False, True, False),
        "tiled": contrib.seq2seq.tile_batch(targets, 3),
        "hard": contrib.seq2seq.hardmax(logits),
    }


def vocabularies(contrib):
    lookup = contrib.lookup
    words = tf.constant(["b", "c", "zebra", "a", "yak"])
    mapping = tf.constant(["a", "b", "c"])
    return {
        "index": lookup.index_table_from_tensor(mapping).lookup(words),
        "buckets": lookup.index_table_from_tensor(mapping, num_oov_buckets=5).lookup(words),
        "numbers": lookup.index_table_from_tensor([30, 10], dtype=tf.int32).lookup(
            tf.constant([10, 5], tf.int64)
        ),
    }


def slim_network(contrib):
    """A network in the style of slim's programs: argument scopes, end points, a train op."""
    slim = contrib.slim
    x = tf.constant(input_values(4, 8, 8, 3))
    with slim.arg_scope(  # noqa: SIM117 - as programs write it
        [slim.conv2d, slim.fully_connected],
        weights_initializer=v1.truncated_normal_initializer(stddev=0.1),
        weights_regularizer=slim.l2_regularizer(0.001),
        normalizer_fn=slim.batch_norm,
        normalizer_params={"is_training": True, "decay": 0.9},
    ):
        with v1.variable_scope("net", values=[x]) as scope:
            points = scope.original_name_scope + "_end_points"
            with slim.arg_scope([slim.conv2d], outputs_collections=points):
                net = slim.conv2d(x, 4, 3, scope="conv1")
                net = slim.max_pool2d(net, [2, 2], scope="pool1")
                net = slim.repeat(net, 2, slim.conv2d, 4, [3, 3], scope="conv2")
            net = slim.flatten(net)
            net = slim.dropout(net, 0.9, is_training=False, scope="dropout")
            logits = slim.fully_connected(
                net, 2, activation_fn=None, normalizer_fn=None, scope="logits"
            )
    ends = slim.utils.convert_collection_to_dict(points)
    return {"logits": logits, "ends": tf.constant(sorted(ends)), "conv1": ends["net/conv1"]}


def slim_train_op(contrib):
    weight = v1.get_variable("weight", initializer=tf.constant([3.0, -4.0]))
    train = contrib.slim.learning.create_train_op(
        tf.reduce_sum(tf.square(weight)),
        v1.train.GradientDescentOptimizer(0.1),
        clip_gradient_norm=2.0,
        gradient_multipliers={"weight": 0.5},
    )
    return {"loss": train, "then weight": weight, "then step": v1.train.get_global_step()}


slim_train_op.fill = False


def examples(contrib):
    decoder = contrib.slim.tfexample_decoder
    feature = tf.train.Feature
    numbers = lambda *each: feature(float_list=tf.train.FloatList(value=each))  # noqa: E731
    whole = lambda *each: feature(int64_list=tf.train.Int64List(value=each))  # noqa: E731
    image = np.arange(12, dtype=np.uint8).tobytes()
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "image/encoded": feature(bytes_list=tf.train.BytesList(value=[image])),
                "image/format": feature(bytes_list=tf.train.BytesList(value=[b"raw"])),
                "box/ymin": numbers(0.1, 0.2),
                "box/xmin": numbers(0.3, 0.4),
                "box/ymax": numbers(0.5, 0.6),
                "box/xmax": numbers(0.7, 0.8),
                "label": whole(3, 4, 5, 6),
                "rows": whole(2),
                "columns": whole(2),
                "indices": whole(0, 3),
                "values": numbers(1.5, 2.5),
            }
        )
    ).SerializeToString()
    keys = {
        "image/encoded": v1.FixedLenFeature((), tf.string),
        "image/format": v1.FixedLenFeature((), tf.string),
        "label": v1.VarLenFeature(tf.int64),
        "rows": v1.FixedLenFeature((), tf.int64),
        "columns": v1.FixedLenFeature((), tf.int64),
        "indices": v1.VarLenFeature(tf.int64),
        "values": v1.VarLenFeature(tf.float32),
    }
    for side in ("ymin", "xmin", "ymax", "xmax"):
        keys["box/" + side] = v1.VarLenFeature(tf.float32)
    made = decoder.TFExampleDecoder(
        keys,
        {
            "image": decoder.Image(shape=[2, 2, 3]),
            "box": decoder.BoundingBox(prefix="box/"),
            "label": decoder.Tensor("label"),
            "shaped": decoder.Tensor("label", shape_keys=["rows", "columns"]),
            "sum": decoder.ItemHandlerCallback(
                ["rows", "columns"], lambda each: each["rows"] + each["columns"]
            ),
            "sparse": decoder.SparseTensor(shape=[5], densify=True),
        },
    )
    names = made.list_items()
    return dict(zip(names, made.decode(tf.constant(example), names)))


def variables_by_filter(contrib):
    weight = v1.get_variable("weight", [2, 2])
    local = contrib.framework.local_variable(tf.constant(3.0), name="mine")
    kept = contrib.framework.filter_variables([weight, local], exclude_patterns=["mi"])
    with v1.name_scope("outer"):
        scope = contrib.framework.get_name_scope()
    return {
        "kept": tf.constant([each.op.name for each in kept]),
        "scope": tf.constant(scope),
        "chosen": contrib.framework.smart_cond(
            True, lambda: tf.constant(1), lambda: tf.constant(2)
        ),
    }


def images(contrib):
    image = contrib.image
    x = tf.constant(input_values(2, 5, 6, 3))
    turned = image.angles_to_projective_transforms([0.3, 0.8], 5.0, 6.0)
    moved = image.translations_to_projective_transforms([1.0, -2.0])
    both = image.compose_transforms(turned, tf.tile(moved, [2, 1]))
    return {
        "turned": turned,
        "moved": moved,
        "both": both,
        "images": image.transform(x, both, "BILINEAR"),
        "smaller": image.transform(
            x, [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0], output_shape=[2, 3]
        ),
        "rotated": image.rotate(x, 0.5),
        "translated": image.translate(x[0, :, :, 0], [1.0, 1.0]),
    }


def batches(contrib):
    rows = tf.data.Dataset.range(5)
    whole = rows.apply(contrib.data.batch_and_drop_remainder(2))
    ragged = rows.map(lambda each: tf.fill([each + 1], each))
    padded = ragged.apply(contrib.data.padded_batch_and_drop_remainder(2, [None]))
    return {
        "whole": v1.data.make_one_shot_iterator(whole).get_next(),
        "padded": v1.data.make_one_shot_iterator(padded).get_next(),
    }


CASES = (
    *METRICS,
    batch_metrics,
    *OPTIMIZERS,
    sequences,
    vocabularies,
    slim_network,
    slim_train_op,
    examples,
    variables_by_filter,
    images,
    batches,
)

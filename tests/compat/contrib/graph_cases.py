"""What looks at graphs, and what samples: editors, patterns, percentiles. Runs with TensorFlow 1.15 too."""

import tensorflow as tf

from tests.compat.contrib.graph_facts import input_values

v1 = tf.compat.v1


def _names(values):
    return tf.constant(sorted(each.name for each in values) or ["none"])


def _diamond():
    """a, b -> c, d; c, d -> e -> f; d waits for g."""
    a = tf.constant(2.0, name="a")
    b = tf.constant(3.0, name="b")
    g = tf.constant(5.0, name="g")
    c = tf.multiply(a, b, name="c")
    with tf.control_dependencies([g]):
        d = tf.identity(b, name="d")
    e = tf.add(c, d, name="e")
    return a, b, c, d, e, tf.negative(e, name="f"), g


def walks(contrib):
    editor = contrib.graph_editor
    a, b, c, d, e, f, g = _diamond()
    back, ahead = editor.get_backward_walk_ops, editor.get_forward_walk_ops
    found = {
        "back": back(e.op),
        "back_of_tensors": back([c, d], inclusive=False),
        "back_stopped": back([f.op], stop_at_ts=[c]),
        "back_within": back(f.op, within_ops=[f.op, e.op, d.op]),
        "back_chosen": back(f.op, within_ops_fn=lambda op: op.name != "c"),
        "back_controlled": back(e.op, control_inputs=True),
        "back_seed_outside": back([f.op, d.op], within_ops=[d.op, b.op]),
        "ahead": ahead(a.op),
        "ahead_of_tensor": ahead(b),
        "ahead_of_tensor_alone": ahead(b, inclusive=False),
        "ahead_stopped": ahead([b.op], stop_at_ts=[d]),
        "ahead_within": ahead(b.op, within_ops=[b.op, c.op]),
        "all": editor.filter_ts([c.op, d.op], True),
        "some": editor.filter_ts([c.op, e.op], lambda each: each.op.type != "Const"),
        "matched": editor.filter_ts_from_regex([c.op, f.op], r"^[ae](/.*)?:\d+$"),
        "selected": editor.select_ops("^[c-e]$", graph=a.graph),
        "selected_twice": editor.select_ops([c.op, d.op], c.op, a),
        "selected_some": editor.select_ops(
            "^[c-e]$", graph=a.graph, positive_filter=lambda op: op.type == "Identity"
        ),
        "restricted": editor.select_ops(
            "^c$", "(?#ops)^d$", graph=a.graph, restrict_ops_regex=True
        ),
    }
    del g
    return {name: _names(each) for name, each in found.items()}


def rerouted(contrib):
    editor = contrib.graph_editor
    a, b, c, d, e, f, g = _diamond()
    both = tf.add(b, b, name="both")
    counts = [editor.reroute_ts([g], [b], can_modify=[c.op, both.op], cannot_modify=[c.op])]
    counts.append(editor.reroute_ts(a, c))
    editor.add_control_inputs(f.op, [c.op])
    return {
        "counts": tf.constant(counts),
        "waits": _names(f.op.control_inputs),
        "c": c,
        "e": e,
        "f": f,
        "both": both,
        "d": d,
    }


def _matcher(contrib):
    """The original has it in a private module."""
    part = contrib.quantize
    if not hasattr(part, "graph_matcher"):
        from tensorflow.contrib.quantize.python import graph_matcher

        return graph_matcher
    return part.graph_matcher


def patterns(contrib):
    matcher = _matcher(contrib)
    a, b, c, d, e, f, g = _diamond()
    split = tf.split(tf.constant([1.0, 2.0]), 2, name="split")
    last = tf.subtract(split[1], a, name="last")
    kind = matcher.OpTypePattern

    def found(pattern):
        return _names(
            each.get_op(pattern) for each in matcher.GraphMatcher(pattern).match_graph(a.graph)
        )

    product = kind("Mul", name="product")
    other = kind("Identity", name="other")
    swapped = [other, product]
    either = matcher.OneofPattern([kind("Neg"), kind("Mul", inputs=["Const", "Const"])])
    named = kind("Add|AddV2", inputs=swapped, ordered_inputs=False)
    result = matcher.GraphMatcher(named).match_op(e.op)
    side = kind("*")
    taken = matcher.GraphMatcher(kind("Sub", inputs=[side, "*"])).match_op(last.op)
    missing = matcher.GraphMatcher(kind("Neg", inputs=[kind("Mul")])).match_op(f.op)
    del b, c, d, g
    return {
        "any_of_two": found(kind("Neg|Identity")),
        "by_inputs": found(kind("*", inputs=[kind("*", inputs=[kind("*"), "*"])])),
        "in_order": found(kind("Add|AddV2", inputs=[product, other])),
        "in_the_other_order": found(kind("Add|AddV2", inputs=swapped)),
        "in_any_order": found(named),
        "by_name": tf.constant([result.get_op("product").name, result.get_op("other").name]),
        "unknown": tf.constant([result.get_op("nothing") is None, missing is None]),
        "tensors": tf.constant(
            [
                result.get_tensor(product).name,
                taken.get_tensor(side).name,
                str(result.get_tensor(named)),
            ]
        ),
        "either": tf.constant(
            [each is not None for each in map(matcher.GraphMatcher(either).match_op, (f.op, e.op))]
        ),
    }


def percentiles(contrib):
    x = tf.constant(input_values(3, 4, 2))
    percentile = contrib.distributions.percentile
    found = {
        "kept": percentile(x, 40.0, axis=[0, 2], keep_dims=True),
        "all_kept": percentile(x, 40.0, keep_dims=True),
        "negative": percentile(x, 75.0, axis=-1, validate_args=True),
        "first": percentile(x, 10.0, axis=0),
    }
    even = tf.constant([4.0, 1.0, 3.0, 2.0, 9.0, 7.0])
    for kind in ("lower", "higher", "nearest", None):
        # 10, 30, 50, 70 and 90 are half way between two.
        made = [percentile(even, q, interpolation=kind) for q in (0, 10, 30, 33, 50, 70, 90, 100)]
        found[str(kind)] = tf.stack(made)
    return found


def staged(contrib):
    area = contrib.staging.StagingArea([tf.float32], shapes=[[2]])
    put = area.put([tf.constant([1.0, 2.0])])
    with tf.control_dependencies([put]):
        size = area.size()
    with tf.control_dependencies([size]):
        return {"size": size, "got": tf.identity(area.get())}


def profiles(contrib):
    from_options = contrib.tfprof.model_analyzer
    v1.get_variable("weight", [3, 4])
    v1.get_variable("fixed", [5], trainable=False)
    options = dict(from_options.TRAINABLE_VARS_PARAMS_STAT_OPTIONS, output="none")
    found = from_options.print_model_analysis(v1.get_default_graph(), tfprof_options=options)
    return {
        "parameters": tf.constant(found.total_parameters),
        "options": tf.constant(
            [
                str(
                    [
                        each[key]
                        for key in ("account_type_regexes", "min_float_ops", "order_by", "select")
                    ]
                )
                for each in (
                    from_options.TRAINABLE_VARS_PARAMS_STAT_OPTIONS,
                    from_options.FLOAT_OPS_OPTIONS,
                )
            ]
        ),
    }


def resampled(contrib):
    data = tf.constant(input_values(2, 4, 5, 3))
    warp = tf.constant(input_values(2, 6, 2) * 5.0)
    exact = tf.constant([[[0.0, 0.0], [4.0, 3.0], [2.0, 1.5], [-1.0, 0.0]]] * 2)
    made = contrib.resampler.resampler(data, warp)
    gradients = tf.gradients(tf.reduce_sum(tf.square(made)), [data, warp])
    return {
        "made": made,
        "exact": contrib.resampler.resampler(data, exact),
        "data_gradient": gradients[0],
        "warp_gradient": gradients[1],
    }


def slim_summaries(contrib):
    summaries = contrib.slim.summaries
    value = tf.constant(0.5, name="value")
    found = {
        "scalar": summaries.add_scalar_summary(value),
        "named": summaries.add_scalar_summary(value, "mine", prefix="net"),
        "printed": summaries.add_scalar_summary(value, "told", print_summary=True),
    }
    with v1.name_scope("scope"):
        found["scoped"] = summaries.add_scalar_summary(value, "inner")

    def tags(text):
        return v1.Summary.FromString(text).value[0].tag

    return {name: v1.py_func(tags, [each], tf.string) for name, each in found.items()}


CASES = (
    walks,
    rerouted,
    patterns,
    percentiles,
    staged,
    profiles,
    resampled,
    slim_summaries,
)

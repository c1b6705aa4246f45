"""What a case makes in a graph: variables, collections, numbers. Runs with TensorFlow 1.15 too."""

import zlib

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def input_values(*shape):
    """The same numbers on every line: between -1 and 1, none equal."""
    count = int(np.prod(shape))
    return np.sin(np.arange(1, count + 1) * 0.7).reshape(shape).astype(np.float32)


def _value_of(name, shape, dtype):
    """Returns a variable's value, by its name: initializers' draws differ between versions."""
    seed = zlib.crc32(name.encode()) % 1000
    values = np.sin((np.arange(int(np.prod(shape))) + seed) * 0.37) * 0.5
    if "moving_variance" in name or "moment" in name:
        values = np.abs(values) + 0.5
    return values.reshape(shape).astype(dtype.as_numpy_dtype)


def facts_of(case, contrib):
    """Builds a case in its own graph, runs it and returns the results.

    Args:
        case: Takes the contrib module; returns what to run by name. What begins with "then " is run
            after the others. Its attribute `fill` says whether float variables get a value by their
            name, else their initializers run; `steps` how often it is run, the last outputs told.
        contrib: `tf.contrib`, or ours.
    """
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        fetches = case(contrib)
        variables = v1.global_variables()
        known = {each.name for each in variables}
        listed = {}
        for key in v1.get_default_graph().get_all_collection_keys():
            if key in ("variables", "local_variables", "metric_variables") or "context" in str(key):
                continue
            if isinstance(key, str):
                names = sorted(each.name for each in v1.get_collection(key))
                # The names of variables matter; those of ops differ between versions.
                listed[key] = names if known.issuperset(names) else len(names)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(v1.tables_initializer())
            if getattr(case, "fill", True):
                for each in variables:
                    if each.dtype.base_dtype in (tf.float32, tf.float16):
                        value = _value_of(each.op.name, each.shape.as_list(), each.dtype.base_dtype)
                        each.load(value, session)
            first = {key: each for key, each in fetches.items() if not key.startswith("then ")}
            then = {key: each for key, each in fetches.items() if key.startswith("then ")}
            for _ in range(getattr(case, "steps", 1)):
                found = session.run(first)
            found = {key: each for key, each in found.items() if each is not None}
            found.update(session.run(then))
        return {
            "variables": [
                [each.op.name, each.shape.as_list(), each.dtype.base_dtype.name]
                for each in variables
            ],
            "collections": {key: names for key, names in sorted(listed.items()) if names},
            "outputs": {
                key: [list(np.shape(each)), _plain(each)] for key, each in sorted(found.items())
            },
        }


def _plain(values):
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind in "OSU":
        return [each.decode() if isinstance(each, bytes) else str(each) for each in flat.tolist()]
    if flat.dtype.kind == "f":
        return [float(f"{each:.7g}") for each in flat.astype(np.float64).tolist()]
    return flat.tolist()

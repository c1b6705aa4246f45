"""Small SavedModels: y = 2 x in each metagraph, whatever its tags."""

from __future__ import annotations

import tensorflow as tf

v1 = tf.compat.v1


def save_metagraphs(path: str, *tags: list[str], as_text: bool = False) -> str:
    """One metagraph for each list of tags; one with the tag `tpu` holds an op of the TPU."""
    builder = v1.saved_model.Builder(path)
    for index, tag_set in enumerate(tags):
        graph = tf.Graph()
        with graph.as_default(), v1.Session(graph=graph) as session:
            x = v1.placeholder(tf.float32, [None, 3], name="x")
            scale = v1.get_variable("scale", initializer=2.0, use_resource=True)
            y = tf.multiply(x, scale, name="y")
            if "tpu" in tag_set:
                _add_tpu_op(graph)
            signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
            options = {
                "signature_def_map": {"serving_default": signature},
                "main_op": v1.tables_initializer(),
            }
            initializer = v1.global_variables_initializer()
            if index == 0:
                session.run(initializer)
                builder.add_meta_graph_and_variables(session, tag_set, **options)
            else:
                builder.add_meta_graph(tag_set, **options)
    builder.save(as_text=as_text)
    return path


def _add_tpu_op(graph: tf.Graph) -> None:
    node = v1.NodeDef(name="ordinal", op="TPUOrdinalSelector")
    with graph.as_default():
        tf.graph_util.import_graph_def(v1.GraphDef(node=[node]), name="")

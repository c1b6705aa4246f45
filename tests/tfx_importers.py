"""The Transform output that the tfx wheel carries, as nodes at the head of a pipeline."""

import json

from tfx import v1 as tfx

from tests import tfx_testdata

_kinds = tfx.types.standard_artifacts


def importers() -> dict[str, tfx.dsl.Importer]:
    """Returns new nodes for `examples`, `transform_graph` and `schema`; a node belongs to one pipeline."""
    return {
        "examples": _imported(
            "examples",
            tfx_testdata.TRANSFORMED_EXAMPLES,
            _kinds.Examples,
            split_names=json.dumps(["train", "eval"]),
        ),
        "transform_graph": _imported("graph", tfx_testdata.TRANSFORM_GRAPH, _kinds.TransformGraph),
        "schema": _imported("schema", f"{tfx_testdata.TRANSFORM_GRAPH}/metadata", _kinds.Schema),
    }


def _imported(name, uri, kind, **properties):
    importer = tfx.dsl.Importer(source_uri=uri, artifact_type=kind, properties=properties)
    return importer.with_id(name)

"""The Transform output that the tfx wheel carries: Chicago taxi trips, 9,909 to train on and 5,091 to evaluate."""

import importlib.util
import os

# Found without importing tfx, which takes ten seconds.
_TFX = os.path.dirname(importlib.util.find_spec("tfx").origin)
ROOT = os.path.join(_TFX, "components", "testdata", "transform")
TRANSFORM_GRAPH = os.path.join(ROOT, "transform_graph")
TRANSFORMED_EXAMPLES = os.path.join(ROOT, "transformed_examples")
RAW_EXAMPLES = os.path.join(os.path.dirname(ROOT), "csv_example_gen")
ROWS = {"train": 9_909, "eval": 5_091}
LABEL = "tips_xf"


def files(split: str) -> str:
    """Returns the pattern of a split's files."""
    return os.path.join(TRANSFORMED_EXAMPLES, f"Split-{split}", "*")

"""What tf.contrib of TensorFlow 1.15 made of the cases: names of variables, collections, numbers.

Run by TensorFlow 1.15, which needs Python 3.7, this writes `original.json` next to it:

    uv venv --python 3.7 /tmp/contrib
    uv pip install --python /tmp/contrib/bin/python tensorflow==1.15.5 "numpy<1.19" "protobuf<3.21"
    PYTHONPATH=. /tmp/contrib/bin/python -m tests.compat.contrib.record_original
"""

import inspect
import json
import pathlib
import re

from tests.compat.contrib import graph_cases, layer_cases, loops, part_cases, sequence_cases
from tests.compat.contrib.graph_facts import facts_of

RECORDING = pathlib.Path(__file__).with_name("original.json")
CASES = {
    case.__name__: case
    for module in (layer_cases, part_cases, sequence_cases, graph_cases)
    for case in module.CASES
}
PARTS = (
    "crf",
    "cudnn_rnn",
    "data",
    "distributions",
    "framework",
    "graph_editor",
    "image",
    "layers",
    "lookup",
    "metrics",
    "opt",
    "quantize",
    "resampler",
    "rnn",
    "seq2seq",
    "slim",
    "staging",
    "summary",
    "tfprof",
    "training",
)


def signature_of(function):
    """The arguments and their defaults, without what differs by version: addresses, annotations."""
    parameters = list(_signature(function).parameters.values())
    parameters = parameters[1:] if inspect.isclass(function) else parameters
    return [
        ("*" if each.kind == each.VAR_POSITIONAL else "**" if each.kind == each.VAR_KEYWORD else "")
        + each.name
        + ("" if each.default is each.empty else "=" + _default(each.default))
        for each in parameters
    ]


def _default(value):
    if callable(value) or type(value).__module__.startswith(("tensorflow", "tfx_tpu_trainer")):
        return "..."
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def signatures(contrib):
    """Returns part -> name -> arguments, for a part's callable names."""
    found = {}
    for part in PARTS:
        module = getattr(contrib, part)
        names = [name for name in dir(module) if not name.startswith("_")]
        found[part] = {
            name: signature_of(getattr(module, name))
            for name in names
            if callable(getattr(module, name)) and _has_signature(getattr(module, name))
        }
    return found


def _signature(value):
    return inspect.signature(value.__init__ if inspect.isclass(value) else value)


def _has_signature(value):
    try:
        _signature(value)
    except (TypeError, ValueError):
        return False
    return True


def main():
    """Writes the recording."""
    import tensorflow as tf
    from tensorflow import contrib

    # As under our engine; other variables are read before or after an update, by chance.
    tf.compat.v1.enable_resource_variables()
    recorded = {
        "signatures": signatures(contrib),
        "cases": {name: facts_of(case, contrib) for name, case in CASES.items()},
        "loops": {name: loop(contrib) for name, loop in loops.LOOPS.items()},
    }
    text = json.dumps(recorded, indent=0, sort_keys=True, separators=(",", ":"))
    # A list of numbers is a line.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: found.group().replace("\n", ""), text)
    RECORDING.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

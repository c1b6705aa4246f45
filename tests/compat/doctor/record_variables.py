"""What variables TensorFlow 1.15 makes of the programs of layer_programs.py, as they are written.

Run by TensorFlow 1.15, which needs Python 3.7, this writes `variables.json` beside it:

    uv venv --python 3.7 /tmp/tf115
    uv pip install --python /tmp/tf115/bin/python tensorflow==1.15.5 "numpy<1.19" "protobuf<3.21"
    PYTHONPATH=. /tmp/tf115/bin/python -m tests.compat.doctor.record_variables
"""

from __future__ import annotations

import json
import pathlib

from tests.compat.doctor.layer_programs import PROGRAMS, X

RECORDING = pathlib.Path(__file__).with_name("variables.json")


def variables_of(text):
    """Runs a program in a graph of its own: name, shape and whether it trains, of each variable."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        exec(compile(text, "program", "exec"), {})
        trained = {each.name for each in v1.trainable_variables()}
        return sorted(
            [each.name, each.shape.as_list(), each.name in trained]
            for each in (*v1.global_variables(), *v1.local_variables())
        )


def main():
    """Writes the recording."""
    recorded = {name: variables_of(head + X + body) for name, (head, body) in PROGRAMS.items()}
    # A line for each variable.
    programs = [
        f'"{name}": [\n' + ",\n".join(map(json.dumps, recorded[name])) + "\n]" for name in recorded
    ]
    RECORDING.write_text("{\n" + ",\n".join(programs) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

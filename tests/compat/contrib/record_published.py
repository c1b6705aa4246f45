"""The variables of published networks, as TensorFlow 1.15 made them.

The networks' packages lie in a folder; run by TensorFlow 1.15 this writes `published_variables.json` beside it:

    uv venv --python 3.7 /tmp/contrib
    uv pip install --python /tmp/contrib/bin/python tensorflow==1.15.5 "numpy<1.19" "protobuf<3.21"
    uv pip install --no-deps --target /tmp/networks bert-tensorflow==1.0.1 albert-tensorflow==1.1
    uv pip install --no-deps --target /tmp/more malaya==3.9.0 tf-models-official==2.1.0.dev2
    cp /tmp/more/malaya/transformers/electra/modeling.py /tmp/networks/electra_modeling.py
    cp /tmp/more/official/r1/resnet/resnet_model.py /tmp/networks/
    PYTHONPATH=.:/tmp/networks /tmp/contrib/bin/python -m tests.compat.contrib.record_published
"""

import json
import pathlib
import subprocess
import sys

from tests.compat.contrib import published_networks

RECORDING = pathlib.Path(__file__).with_name("published_variables.json")


def main():
    """Writes the recording: one network a process, since their programs define the same flags."""
    recorded = {}
    for name in published_networks.NETWORKS:
        command = [sys.executable, published_networks.__file__, name]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()
        recorded[name] = json.loads(said.strip().splitlines()[-1])
    lines = [
        json.dumps(name) + ": [\n" + ",\n".join(map(json.dumps, found)) + "\n]"
        for name, found in sorted(recorded.items())
    ]
    RECORDING.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()

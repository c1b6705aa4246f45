"""Records the original's rows and what the cases lead to in it, as `original.json` beside this.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever a case changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1 pandas
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.words.record_original

There is no TPU: the original is told of cores that do not exist, with which it gets as far as
its graphs; the error of a session that has no TPU counts as none. A case hits a row where its error
came through the row's lines, where the failed op was made there or says the row's words, or where a log record says so.
"""

from __future__ import annotations

import faulthandler
import json
import pathlib
import sys
from typing import Any

import tensorflow as tf
import tensorflow_estimator
from tensorflow.python.tpu import tpu_system_metadata
from tensorflow.python.tpu.topology import Topology

from tests.estimator.words import original_rows, outcomes
from tests.estimator.words.cases import CASES
from tests.estimator.words.stacks import Stack

RECORDING = pathlib.Path(__file__).with_name("original.json")
CASE_SECONDS = 60
# How a session ends that has a TPU's ops and no TPU.
_NO_TPU = ["InvalidArgumentError", "Graph execution error"]


def _made_up_cores(stack: Stack) -> Any:
    """What a case's system says of itself: a host's chips have two cores each, and stand in a row."""
    hosts, cores = stack.system
    chips = [range(host * cores // 2, (host + 1) * cores // 2) for host in range(hosts)]
    places = [[[chip, 0, 0, core] for chip in row for core in range(2)] for row in chips]
    shape = [hosts * cores // 2, 1, 1, 2]
    return tpu_system_metadata.TPUSystemMetadata(
        num_cores=hosts * cores,
        num_hosts=hosts,
        num_of_cores_per_host=cores,
        topology=Topology(mesh_shape=shape, device_coordinates=places) if cores else None,
        devices=[],
    )


def main() -> None:
    package = pathlib.Path(tensorflow_estimator.__file__).parent
    rows = original_rows.rows_of(package)
    at: dict[tuple[str, int], str] = {}
    for row in sorted(rows, key=lambda row: len(row.lines), reverse=True):
        at |= {(row.path, line): row.id for line in row.lines}
    v1 = tf.compat.v1.estimator
    recorded = {}
    for name, case in CASES.items():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        with Stack(tf.estimator, v1, v1.tpu) as stack:
            tpu_system_metadata._query_tpu_system_metadata = lambda *_, **__: _made_up_cores(stack)
            told, heard, error = outcomes.outcome(case, stack)
        if told["error"] == _NO_TPU:
            told["error"] = None
        own = [record for record in heard.records if str(package) in record.pathname]
        told["logs"] = [outcomes.log_words(record) for record in own]
        where = [(record.pathname, record.lineno) for record in own]
        where += outcomes.places(error) if error else []
        hit = {at[place] for place in where if place in at}
        if isinstance(error, tf.errors.InvalidArgumentError):
            hit |= {
                row.id
                for row in rows
                if ":check:" in row.id and row.words and row.words in str(error)
            }
        told["rows"] = sorted(hit)
        recorded[name] = told
        print(name, told["error"], [row for row in told["rows"] if ":log:" not in row], flush=True)
    if sys.argv[1:]:
        return
    recording = {"rows": {row.id: row.words for row in rows}, "cases": recorded}
    text = json.dumps(recording, indent=1, ensure_ascii=False)
    RECORDING.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

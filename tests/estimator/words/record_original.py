"""Records the original's rows and what the cases lead to in it, as `original.json` beside this.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever a case changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1 pandas
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.words.record_original

There is no TPU: the original is told of cores that do not exist, with which it gets as far as
its graphs; the error of a session that has no TPU counts as none. A case hits a row where its error
came through the row's lines, where the failed op was made there or says the row's words, or where a log record says so.

A row is a raise, an assert, a shape check or a log line of the original's source. Its id is
`module:function:kind:number`; numbers count within the function, so an edit elsewhere moves none.
"""

import ast
import dataclasses
import faulthandler
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_estimator
from tensorflow.python.tpu import tpu_system_metadata
from tensorflow.python.tpu.topology import Topology

from tests.estimator.words import outcomes
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
    rows = rows_of(package)
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


# Helpers of the original's own tests, and its generated lists of names.
LEFT_OUT = ("testing_utils", "_api/", "estimator/api/")


PATTERN_WORDS = 6


_SCOPES = (ast.FunctionDef, ast.ClassDef)


@dataclasses.dataclass(frozen=True)
class Row:
    """One statement that a program can hear of.

    Attributes:
        id: Stable name.
        words: The first words of its message, as far as they are literal.
        path: Its module's file.
        lines: Where the statement stands; of a bare `raise`, what its `try` holds.
    """

    id: str
    words: str
    path: str
    lines: range


def rows_of(package: pathlib.Path) -> list[Row]:
    """Returns the rows of all modules of the installed package `tensorflow_estimator`."""
    rows: list[Row] = []
    root = package / "python" / "estimator"
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(part in f"estimator/{name}" for part in LEFT_OUT):
            continue
        numbers: Counter[str] = Counter()
        tree = ast.parse(path.read_text("utf-8"))
        tried = {
            node: part.body
            for part in ast.walk(tree)
            if isinstance(part, ast.Try)
            for handler in part.handlers
            for node in handler.body
            if isinstance(node, ast.Raise) and node.exc is None
        }
        for node, function in _statements(tree, ()):
            key = f"{name[:-3].replace('/', '.')}:{function}:{_kind(node)}"
            numbers[key] += 1
            lines = _lines(tried.get(node, [node]))
            rows.append(Row(f"{key}:{numbers[key]}", _words(node), str(path), lines))
    return rows


def _statements(parent: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.iter_child_nodes(parent):
        inner = (*scope, node.name) if isinstance(node, _SCOPES) else scope
        if isinstance(node, ast.stmt) and not isinstance(node, _SCOPES) and _kind(node):
            yield node, ".".join(scope)
        yield from _statements(node, inner)


def _kind(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Raise):
        return "raise"
    if isinstance(node, ast.Assert):
        return "assert"
    value = getattr(node, "value", None)
    if not isinstance(value, ast.Call):
        return None
    called = ast.unparse(value.func)
    if "logging." in called:
        return "log"
    return "check" if "debugging." in called else None


def _lines(nodes: Sequence[ast.stmt]) -> range:
    return range(nodes[0].lineno, (nodes[-1].end_lineno or nodes[-1].lineno) + 1)


def _words(node: ast.stmt) -> str:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
            return " ".join(part.value.split()[:PATTERN_WORDS])
    return ""


if __name__ == "__main__":
    main()

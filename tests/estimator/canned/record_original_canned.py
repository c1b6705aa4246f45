"""Records what the original's canned estimators make of the runs of `canned_runs.py`.

Not a test: it needs TensorFlow 2.15, the last with an estimator. Run by hand from the repository's
root whenever `canned_runs.py` changes; it writes `original_canned.json` and the checkpoint of
`original_checkpoint/`, of `CHECKPOINT_OF` after `STEPS` steps:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1 pandas
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.canned.record_original_canned

Names of runs after it, each quoted, record these only.
"""

import inspect
import json
import pathlib
import shutil
import sys
import tempfile
from typing import Any

import tensorflow as tf

from tests.estimator.canned import canned_runs

HERE = pathlib.Path(__file__).parent
RECORDING = HERE / "original_canned.json"
CHECKPOINT = HERE / "original_checkpoint"
CHECKPOINT_OF = "combined_classifier v2"
STEPS = 6


def main() -> None:
    """Runs canned estimators; the signatures of the constructors are kept as well."""
    only = sys.argv[1:]
    runs = json.loads(RECORDING.read_text())["runs"] if only else {}
    for run in only or canned_runs.ALL:
        with tempfile.TemporaryDirectory() as folder:
            runs[run] = canned_runs.facts(canned_runs.original_api(run), run, folder, STEPS)
            if run == CHECKPOINT_OF:
                _keep_checkpoint(folder)
                apis = canned_runs.original_api(run)
                runs[f"{run} goes on"] = canned_runs.facts(apis, run, folder, STEPS)
    apis = {"v1": tf.compat.v1.estimator, "v2": tf.estimator}
    recording = {"tensorflow": tf.__version__, "runs": runs, "arguments": arguments(apis)}
    RECORDING.write_text(json.dumps(recording, sort_keys=True) + "\n")


def arguments(apis: dict[str, Any]) -> dict[str, list[list[str]]]:
    """'v1 Class' -> [name, default as text] of each argument of the constructor, in order.

    Args:
        apis: "v1" and "v2" -> the namespace with the classes.
    """
    found = {}
    for version, api in apis.items():
        for name in sorted({run.name for run in canned_runs.RUNS.values()}):
            parameters = inspect.signature(getattr(api, name).__init__).parameters.values()
            found[f"{version} {name}"] = [
                [each.name, _default(each)] for each in parameters if each.name != "self"
            ]
    return found


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "required"
    return getattr(parameter.default, "__name__", None) or repr(parameter.default)


def _keep_checkpoint(folder: str) -> None:
    shutil.rmtree(CHECKPOINT, ignore_errors=True)
    CHECKPOINT.mkdir()
    for file in pathlib.Path(folder).iterdir():
        if file.name.startswith(f"model.ckpt-{STEPS}.") and file.suffix != ".meta":
            shutil.copy(file, CHECKPOINT)
    (CHECKPOINT / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{STEPS}"\n')


if __name__ == "__main__":
    main()

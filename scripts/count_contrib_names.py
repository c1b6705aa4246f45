"""Counts which names of tf.contrib public programs use: what tests/compat/doctor/contrib_counts.json is made with.

    python -m scripts.count_contrib_names FOLDER

downloads the packages below into FOLDER with pip (those that are there already are not asked for again), reads
their Python files without running them, and writes the counts. Nothing of the packages is kept but the numbers.
An occurrence is a use of a name: `tf.contrib.layers.conv2d(...)`, `slim.conv2d(...)` after `slim =
tf.contrib.slim`, `conv2d(...)` after `from tensorflow.contrib.layers import conv2d`.
"""

from __future__ import annotations

import ast
import collections
import json
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parents[1] / "tests" / "compat" / "doctor" / "contrib_counts.json"
CONTRIB = "tensorflow.contrib"

# Libraries and programs of TensorFlow 1's time, as the package index has them.
PACKAGES = (
    "gpt-2-simple==0.5.4",
    "mlagents==0.8.2",
    "garage==2019.10.0",
    "finetune==0.6.5",
    "nlp-architect==0.4.0",
    "facenet==1.0.5",
    "lucid==0.3.8",
    "cleverhans==3.0.1",
    "texar==0.2.4",
    "spleeter==1.4.9",
    "tensorpack==0.9.8",
    "gpt2-client==2.1.5",
    "bert-base==0.0.9",
    "macropodus==0.0.7",
    "ray==0.6.6",
    "tf-encrypted==0.5.9",
    "larq==0.7.0",
    "delira==0.4.1",
    "tfdeploy==0.4.2",
    "tensorflow-lattice==0.9.9",
    "neural-structured-learning==1.0.0",
    "tensorflow-federated==0.4.0",
    "tensorflow-constrained-optimization==0.2",
    "malaya==3.9",
    "OpenNMT-tf==1.25.3",
    "adanet==0.5.0",
    "albert-tensorflow==1.1",
    "baselines==0.1.5",
    "batchflow==0.3.0",
    "bert-serving-server==1.10.0",
    "bert-tensorflow==1.0.1",
    "deepctr==0.5.0",
    "deeppavlov==0.6.0",
    "dm-sonnet==1.36",
    "dopamine-rl==1.0.5",
    "edward==1.3.5",
    "horovod==0.16.0",
    "kashgari-tf==0.5.5",
    "kfac==0.2.0",
    "ludwig==0.1.2",
    "magenta==1.1.8",
    "malaya==2.0",
    "mesh-tensorflow==0.1.13",
    "niftynet==0.6.0",
    "nmt==0.0.6",
    "object-detection==0.0.3",
    "polyaxon-lib==0.0.4",
    "rasa==1.0.0",
    "stable-baselines==2.10.2",
    "tensor2tensor==1.15.7",
    "tensorflow-gan==1.0.0.dev0",
    "tensorflow-privacy==0.2.2",
    "tensorflow-probability==0.7.0",
    "tensorflow-ranking==0.1.3",
    "tensorforce==0.4.3",
    "tensorlayer==1.11.1",
    "tf-agents==0.3.0",
    "tflearn==0.3.2",
    "tfx==0.14.0",
    "trfl==1.0",
    "xlnet-tensorflow==1.1",
)
# Wheels first: an sdist's setup.py is run by pip. Those of that time are for Python 3.6.
_WHEELS = ["--only-binary", ":all:"]
_OLD_WHEELS = [*_WHEELS, "--python-version", "3.6"]
_OLD_WHEELS += [each for tag in ("manylinux1_x86_64", "any") for each in ("--platform", tag)]
_SDISTS = ["--no-binary", ":all:"]


def download(package: str, folder: Path) -> Path:
    """Returns the package's archive, downloaded by pip where it is not there yet."""
    there = folder / package.replace("==", "-")
    there.mkdir(parents=True, exist_ok=True)
    said = ""
    for kind in (None, _OLD_WHEELS, _WHEELS, _SDISTS):
        if kind is not None:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            done = subprocess.run(
                [*command, *kind, "--dest", str(there), package],
                capture_output=True,
                text=True,
                check=False,
            )
            said = done.stderr.strip().rpartition("\n")[2]
        found = sorted(there.iterdir())
        if found:
            return found[0]
    raise ValueError(f"{package} can't be downloaded: {said}")


def sources(archive: Path) -> Iterator[bytes]:
    """Yields the Python files of a wheel or sdist."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for name in sorted(opened.namelist()):
                if name.endswith(".py"):
                    yield opened.read(name)
        return
    with tarfile.open(archive) as opened:
        for member in opened:
            file = opened.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                yield file.read()


def names_in(source: bytes) -> collections.Counter[str]:
    """Counts the uses of tf.contrib in one file."""
    found: collections.Counter[str] = collections.Counter()
    if b"contrib" not in source:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    bound = _imports(tree)
    # `slim = tf.contrib.slim` binds too, and what it says is no use.
    assigned = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = _name_of(node.value, bound)
            if name is not None and name.startswith(CONTRIB) and not _is_called_name(name):
                assigned[node.targets[0].id] = name
                bound[node.targets[0].id] = name
    inner = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _name_of(node, bound) is not None
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in inner:
            name = _name_of(node, bound) if isinstance(node.ctx, ast.Load) else None
            if name is not None and name.startswith(f"{CONTRIB}."):
                short = _to_class(name[len(CONTRIB) + 1 :])
                if name not in assigned.values():
                    found[short] += 1
    return found


def _imports(tree: ast.AST) -> dict[str, str]:
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "tensorflow":
                    bound[each.asname or "tensorflow"] = each.name if each.asname else "tensorflow"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow"):
            for each in node.names:
                bound[each.asname or each.name] = f"{node.module}.{each.name}"
    return bound


def _name_of(node: ast.AST, bound: Mapping[str, str]) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bound:
        return None
    name = ".".join([bound[node.id], *reversed(parts)])
    return name.replace("tensorflow.compat.v1.contrib", CONTRIB, 1)


def _is_called_name(name: str) -> bool:
    """Whether a name is deeper than a part of tf.contrib: `optimizer = tf.contrib.opt.AdamWOptimizer`."""
    return name.count(".") > 2


def _to_class(name: str) -> str:
    parts = name.split(".")
    classes = (number for number, part in enumerate(parts) if part[:1].isupper())
    return ".".join(parts[: next(classes, len(parts)) + 1])


def count(packages: Iterable[str], folder: Path) -> dict[str, Any]:
    """Counts the names in packages.

    Args:
        packages: Names with versions.
        folder: Where their archives are, or go.

    Returns:
        `packages`: package -> occurrences; `names`: name -> occurrences; `unread`: how many files are
        not Python 3.
    """
    totals, names, unread = {}, collections.Counter[str](), 0
    for package in packages:
        here: collections.Counter[str] = collections.Counter()
        for source in sources(download(package, folder)):
            try:
                here += names_in(source)
            except (SyntaxError, ValueError):
                unread += b"contrib" in source
        totals[package] = sum(here.values())
        names += here
        print(f"{package}: {totals[package]}", flush=True)
    return {"packages": totals, "names": dict(sorted(names.items())), "unread": unread}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m scripts.count_contrib_names FOLDER")
    counted = count(sorted(PACKAGES, key=str.lower), Path(sys.argv[1]))
    RECORDING.write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")

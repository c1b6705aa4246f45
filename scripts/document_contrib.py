"""Writes the table of tf.contrib in docs/doctor.md, with public programs' uses and the replacements. `make docs`.

    python -m scripts.document_contrib --count FOLDER

renews the counts in tests/compat/doctor/contrib_counts.json: downloads the packages below into FOLDER with pip (except
those that exist already), reads their Python files without running them, and keeps only the numbers. An occurrence is a
use of a name: `tf.contrib.layers.conv2d(...)`, `slim.conv2d(...)` after `slim = tf.contrib.slim`, `conv2d(...)` after
`from tensorflow.contrib.layers import conv2d`.
"""

import ast
import collections
import contextlib
import importlib
import json
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from scripts.draw_pictures import with_block
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.compat.doctor.rules import MODULES, canonical, look_up

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "doctor.md"
_OURS, _TPU = "tfx_tpu_trainer.compat.contrib", "tfx_tpu_trainer.estimator.tpu"
_SHOWN = 8
# Parts with fewer uses share a line.
_FEW = 10
RECORDING = ROOT / "tests" / "compat" / "doctor" / "contrib_counts.json"
CONTRIB = "tensorflow.contrib"

# Libraries and programs from TensorFlow 1's time, by their names in the package index.
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
# Wheels first: pip runs an sdist's setup.py, and those of that time need Python 3.6.
_WHEELS = ["--only-binary", ":all:"]
_OLD_WHEELS = [*_WHEELS, "--python-version", "3.6"]
_OLD_WHEELS += [each for tag in ("manylinux1_x86_64", "any") for each in ("--platform", tag)]
_SDISTS = ["--no-binary", ":all:"]


def download(package: str, folder: Path) -> Path:
    """Returns a package's archive, which pip downloads if missing."""
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
    # `slim = tf.contrib.slim` binds a name, too; the assignment itself is not a use.
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
    """Returns whether a name is below a part of tf.contrib: `optimizer = tf.contrib.opt.AdamWOptimizer`."""
    return name.count(".") > 2


def _to_class(name: str) -> str:
    parts = name.split(".")
    classes = (number for number, part in enumerate(parts) if part[:1].isupper())
    return ".".join(parts[: next(classes, len(parts)) + 1])


def count(packages: Iterable[str], folder: Path) -> dict[str, Any]:
    """Counts the occurrences in each package and of each name, and the files that are not Python 3."""
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


Names = dict[str, int]


def counts() -> dict[str, Any]:
    """Returns the recorded counts."""
    return json.loads(RECORDING.read_text(encoding="utf-8"))


def is_there(name: str) -> bool:
    """Returns whether a program finds a name with `compat` installed, by import or as an attribute."""
    parts = name.split(".")
    for length in range(len(parts), -1, -1):
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(".".join([CONTRIB, *parts[:length]]))
            for part in parts[length:]:
                found = getattr(found, part)
            return True
    return False


def covered(names: Names) -> set[str]:
    """Returns the names that `--fix` writes, and that exist at run time."""
    with compat.install():
        return {name for name in names if _is_fixed(name) and is_there(name)}


def _is_fixed(name: str) -> bool:
    spelled = canonical(f"{CONTRIB}.{name}")
    found = look_up(spelled)
    return (
        "." not in name
        or spelled in MODULES
        or (found is not None and found[1].becomes is not None)
    )


def _parts(names: Names) -> Iterator[tuple[str, Names]]:
    parts: dict[str, Names] = collections.defaultdict(dict)
    for name, uses in names.items():
        part, _, rest = canonical(f"{CONTRIB}.{name}")[len(CONTRIB) + 1 :].partition(".")
        short = rest or part
        parts[part][short] = parts[part].get(short, 0) + uses
    yield from sorted(parts.items(), key=lambda each: (-sum(each[1].values()), each[0]))


def _listed(part: str, names: Names) -> str:
    ordered = sorted(names, key=lambda name: (-names[name], name))
    told = ", ".join(f"`{name}` {names[name]}" for name in ordered[:_SHOWN])
    more = len(ordered) - _SHOWN
    return told + (f" and {more} more" if more > 0 else "")


def _homes(part: str, names: Names) -> str:
    homes: collections.Counter[str] = collections.Counter()
    for name, uses in names.items():
        found = look_up(f"{CONTRIB}.{part}.{name}")
        becomes = found[1].becomes if found else None
        if becomes is None:
            continue
        home = f"`{_OURS}`" if becomes.startswith(_OURS) else "TensorFlow"
        homes["`estimator.tpu`" if becomes.startswith(_TPU) else home] += uses
    return ", ".join(home for home, _ in homes.most_common())


def table() -> str:
    """Returns the table below a sentence on its coverage."""
    recorded = counts()
    names: Names = recorded["names"]
    there = covered(names)
    total, kept = sum(names.values()), sum(names[name] for name in there)
    packages = sum(bool(uses) for uses in recorded["packages"].values())
    lines = [
        (
            f"{packages} public packages use {len(names)} names of `tf.contrib` {total:,} times; {kept:,} of these, "
            f"{kept / total:.0%}, are there."
        ),
        "",
        "| part | uses | there | in | most used | not there |",
        "|---|---|---|---|---|---|",
    ]
    few, few_uses, few_there = [], 0, 0
    with_there = {name: uses for name, uses in names.items() if name in there}
    there_by_part = dict(_parts(with_there))
    for part, found in _parts(names):
        uses, here = sum(found.values()), there_by_part.get(part, {})
        missing = {name: each - here.get(name, 0) for name, each in found.items()}
        missing = {name: each for name, each in missing.items() if each}
        if uses < _FEW:
            few.append(f"`{part}`")
            few_uses, few_there = few_uses + uses, few_there + sum(here.values())
            continue
        lines.append(
            f"| `{part}` | {uses} | {sum(here.values())} | {_homes(part, here)} | {_listed(part, here)} | "
            f"{_listed(part, missing)} |"
        )
    lines.append(f"| {', '.join(few)} | {few_uses} | {few_there} | | | |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Returns the page with a new table."""
    return with_block(text, table())


@click.command()
@click.option(
    "--count",
    "folder",
    type=click.Path(path_type=Path),
    help="Count again, with packages in FOLDER.",
)
def main(folder: Path | None) -> None:
    """Writes the table of docs/doctor.md."""
    if folder is not None:
        counted = count(sorted(PACKAGES, key=str.lower), folder)
        RECORDING.write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Tests that setup.py declares all imports: in the install itself, or in the importing part's extra."""

import ast
import functools
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import pytest

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "tfx_tpu_trainer"
# The extras of each part: its immediate imports come with the first, its late ones with any of them.
EXTRAS = {
    "components/_tfx_private": ["tfx"],
    "components/clusters": ["tfx", "kubeflow"],
    "components/evaluation": ["tfx"],
    "components/gate": ["tfx"],
    "components/inputs": ["tfx"],
    "components/report": ["report", "tfx"],
    "components/trainer": ["tfx", "mlflow"],
    "components/tuning": ["tune"],
    "components/user_module": ["", "tfx"],
    "hardware": ["tfx"],
    "preflight": ["preflight"],
    "workbench/cli": ["", "report"],
    "workbench/history": ["tfx"],
    "workbench/new": ["new"],
    "workbench/notebook": ["notebook"],
    "workbench/project": ["tfx"],
    "workbench/run": ["tfx"],
}
# Wings of which each folder is a part.
DIVIDED = ("components", "workbench")
# A distribution that another one pins to its own version.
SAME_AS = {"ml-pipelines-sdk": "tfx"}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def _declared() -> Mapping[str, frozenset[str]]:
    """Extra -> names of its distributions, those of the install itself among them."""
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(REPOSITORY / "setup.py"))
    given: dict[str, Any] = setup.call_args.kwargs
    lists = {"": given["install_requires"], **given["extras_require"]}
    names = {
        extra: {_normal(re.split(r"[\[<>=~!; ]", each)[0]) for each in requirements}
        for extra, requirements in lists.items()
    }
    return {extra: frozenset(names[extra] | names[""]) for extra in names}


@functools.cache
def _distributions() -> Mapping[str, str]:
    """Path of a module or package of this environment, without its suffix -> its distribution."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = _normal(distribution.metadata["Name"])
        # Its text, as making a path object of each line takes ten times as long.
        for line in (distribution.read_text("RECORD") or "").splitlines():
            path, dot, suffix = line.partition(",")[0].partition(".")
            if dot and suffix.endswith(("py", "pyi", "so")):
                found[path.removesuffix("/__init__")] = name
    return found


def _distribution(module: str) -> str | None:
    """Returns the distribution of a module, or of the module that a name is in."""
    parts = module.split(".")
    paths = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_distributions()[each] for each in paths if each in _distributions()), None)


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yields modules that a file imports, and whether it does so inside of a function."""
    late = {
        id(each)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, id(node) in late) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # A name may be a module, of another distribution than its package.
            yield from ((f"{node.module}.{each.name}", id(node) in late) for each in node.names)


def _undeclared(part: str) -> dict[str, str]:
    """Modules of distributions that nothing brings -> a file that imports them."""
    extras = EXTRAS.get(part, [""])
    files = (
        (PACKAGE / part).rglob("*.py") if (PACKAGE / part).is_dir() else [PACKAGE / f"{part}.py"]
    )
    found = {}
    for file in files:
        if "templates" in file.parts:
            continue
        for module, is_late in _imports(ast.parse(file.read_text(encoding="utf-8"))):
            top = module.partition(".")[0]
            if top in (*sys.stdlib_module_names, PACKAGE.name):
                continue
            allowed = {
                name for extra in (extras if is_late else extras[:1]) for name in _declared()[extra]
            }
            distribution = _distribution(module)
            if SAME_AS.get(distribution, distribution) not in allowed:
                found[f"{module} ({distribution})"] = file.relative_to(PACKAGE).as_posix()
    return found


PARTS = sorted(
    path.relative_to(PACKAGE).with_suffix("").as_posix()
    for folder in (PACKAGE, *(PACKAGE / wing for wing in DIVIDED))
    for path in folder.iterdir()
    if path.name not in DIVIDED and (path.suffix == ".py" or (path / "__init__.py").exists())
)


@pytest.mark.parametrize("part", PARTS)
def test_what_a_part_imports_is_declared(part):
    assert _undeclared(part) == {}


def test_each_part_with_an_extra_is_there():
    assert set(EXTRAS) <= set(PARTS)
    assert {extra for extras in EXTRAS.values() for extra in extras if extra} <= set(_declared())


# Extra -> a program that uses the extra's packages, or imports them.
USES = {
    "": "import tfx_tpu_trainer.estimator.tpu, tfx_tpu_trainer.serving, tfx_tpu_trainer.workbench.cli.main",
    "demo": "from tfx_tpu_trainer import TpuTrainer\nimport sklearn",
    "kubeflow": (
        "from tfx_tpu_trainer.components.clusters import *\n"
        "import kfp.kubernetes, kfp_server_api, google.cloud.aiplatform"
    ),
    "new": "import tfx_tpu_trainer.workbench.new, tfx_tpu_trainer.workbench.new.measuring",
    "notebook": "import tfx_tpu_trainer.workbench.notebook.extension, tfx_tpu_trainer.workbench.notebook.pages",
    "preflight": "from tfx_tpu_trainer.preflight import *",
    "report": "from tfx_tpu_trainer.components.report import *",
    "tfx": (
        "from tfx_tpu_trainer.components import *\nfrom tfx_tpu_trainer.components.evaluation import *\n"
        "import tfx_tpu_trainer.components.inputs, tfx_tpu_trainer.workbench.run.local_runner\n"
        "import tfx_tpu_trainer.workbench.project.beam"
    ),
    "tune": "from tfx_tpu_trainer.components.tuning import *",
}


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("extra", USES)
def test_an_extra_installs_and_imports_alone(tmp_path, extra):
    """In its own environment, with the versions of this line's lock."""
    source, environment = tmp_path / "source", tmp_path / "environment"
    source.mkdir()
    shutil.copytree(PACKAGE, source / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    requirements = REPOSITORY / "requirements" / ("." if sys.version_info < (3, 11) else "tfx-1.21")
    options = ["--constraints", str(requirements / "dev.lock"), "--link-mode", "hardlink"]
    if (requirements / "overrides.in").exists():
        options += ["--overrides", str(requirements / "overrides.in")]
    wanted = f"{source}[{extra}]" if extra else str(source)
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, *options, wanted], check=True)
    from_here = ("PYTEST_", "PYTHON", "TF_USE_LEGACY_KERAS")
    run = subprocess.run(
        [str(python), "-c", USES[extra]],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(from_here)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout

"""What can be wrong with a program before it trains: one line that says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bad_input import case, row
from tests.programs.fetching import REPOSITORY
from tests.programs.running import run_compat

# As the command does, without what it installs; with --repair where the first word says so.
_RUN = """
import functools, os, sys
from tfx_tpu_trainer.compat import _program as program
from tfx_tpu_trainer.compat._repair_imports import RepairingFileLoader, RepairingFinder
from tfx_tpu_trainer.compat._repairs import files_of_module, files_of_program
from tfx_tpu_trainer.compat._repairs import Repairs
sys.path[0] = os.getcwd()
repair, kind, name, *words = sys.argv[1:]
make_loader = None
if repair == "repair":
    files = files_of_program(name) if kind == "file" else files_of_module(name)
    repairs = Repairs(files, shown=False)
    sys.meta_path.insert(0, RepairingFinder(repairs))
    make_loader = functools.partial(RepairingFileLoader, repairs=repairs)
if kind == "file":
    sys.exit(program.run_file(name, words, make_loader=make_loader))
sys.exit(program.run_module(name, words))
"""


def _run(tmp_path, repair: str, kind: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "", "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(tmp_path / "c")}
    return subprocess.run(
        [sys.executable, "-c", _RUN, repair, kind, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _write(folder, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


_TF = "# Of tensorflow's first years.\n"
ERRORS = {
    "missing_tpu": (
        {
            "program.py": (
                f"{_TF}from tpu_cluster_resolver import TPUClusterResolver\nTPUClusterResolver('a')\n"
            ),
            # Of TensorFlow's file's name, and it fails alike: the real one takes seconds to import.
            "tpu_cluster_resolver.py": (
                "import urllib.request\n"
                "def TPUClusterResolver(tpu): urllib.request.urlopen('http://localhost:1')\n"
            ),
        },
        "program.py, line 3: the TPU that the program names can't be looked up",
        "on emulated cores (--emulate N)",
    ),
    "no_credentials": (
        {
            "program.py": (
                f"{_TF}from tpu_cluster_resolver import TPUClusterResolver\nTPUClusterResolver('a')\n"
            ),
            "tpu_cluster_resolver.py": (
                "def TPUClusterResolver(tpu): raise RuntimeError('No credentials.\\nSee the manual.')\n"
            ),
        },
        "program.py, line 3: the TPU that the program names can't be looked up",
        ", and the resolver says: No credentials. Run the program in Google Cloud, or on emulated cores",
    ),
    "missing_package": (
        {"program.py": f"{_TF}import gin.tf\n"},
        "program.py, line 2: the program needs the package 'gin', which is not installed. ",
        "pip install gin-config",
    ),
    "missing_in_a_neighbour": (
        {"program.py": "import beside\n", "beside.py": f"{_TF}\n\nimport no_such_package\n"},
        "beside.py, line 4: the program needs the package 'no_such_package'",
        "otherwise install the package that has it",
    ),
    "in_a_folder_above": (
        {"pack/program.py": f"{_TF}from pack import x\n", "pack/x.py": ""},
        "pack/program.py, line 2: the program needs the package 'pack', which is in ",
        "PYTHONPATH=",
    ),
    "print_statement": (
        {"program.py": f"{_TF}import sys\nprint 'x'\n"},
        "program.py, line 3: Python 2 (\"print 'x'\"). ",
        "2to3 -w program.py",
    ),
    "except_comma": (
        {
            "program.py": "import beside\n",
            "beside.py": f"{_TF}try:\n  x = 1\nexcept ValueError, e:\n  x\n",
        },
        "beside.py, line 4: Python 2",
        "2to3 -w beside.py",
    ),
    "module_of_python_2": (
        {"program.py": f"{_TF}import cPickle as pickle\n"},
        "program.py, line 2: cPickle is a module of Python 2. ",
        "2to3 -w program.py",
    ),
    "backticks_and_longs": (
        {"program.py": f"{_TF}x = 10L\n"},
        "program.py, line 2: Python 2",
        "2to3 -w program.py",
    ),
    "a_flag_defined_twice": (
        {
            "program.py": "from absl import flags\nimport beside\nflags.DEFINE_string('a', '', '')\n",
            "beside.py": f"{_TF}from absl import flags\nflags.DEFINE_string('a', '', '')\n",
        },
        "program.py, line 3: The flag 'a' is defined twice. First from beside, Second from program.py. ",
        "Rename the flag, or pass allow_override=True to the second DEFINE.",
    ),
}


@pytest.mark.parametrize("repair", ["repair", "plain"])
@pytest.mark.parametrize(
    "name",
    [
        case(
            "doctor",
            f"compat: a program with {name.replace('_', ' ')}",
            f"python -m tfx_tpu_trainer.compat: {says}",
            way_out,
            values=name,
        )
        for name, (_, says, way_out) in ERRORS.items()
    ],
)
def test_an_error_with_one_way_out_is_one_line(tmp_path, name, repair, refused):
    files = ERRORS[name][0]
    _write(tmp_path, files)
    program = next(path for path in files if path.endswith("program.py"))
    ended = _run(tmp_path, repair, "file", program)
    refused.output(ended)
    assert ended.returncode == 1 and ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1


# What runs as with python, repaired or not: name -> files, words, exit code, output.
RUNS = {
    "exit": (
        {"program.py": f"{_TF}import sys\nprint('said')\nsys.exit(7)\n"},
        ["file", "program.py"],
        7,
        "said",
    ),
    "path": (
        {
            "program.py": f"{_TF}import os, sys\nhere = os.path.dirname(__file__)\n"
            "sys.path.insert(0, os.path.join(here, 'lib'))\nimport inner\nprint(inner.keys)\n",
            "lib/inner.py": f"{_TF}keys = list({{'a': 1}}.keys())\n",
        },
        ["file", "program.py"],
        0,
        "['a']",
    ),
    "package": (
        {
            "pack/__init__.py": "",
            "pack/__main__.py": f"{_TF}from pack import x\nprint(__spec__.name, x.X)\n",
            "pack/x.py": f"{_TF}X = 3\n",
        },
        ["module", "pack"],
        0,
        "pack.__main__ 3",
    ),
    "folder": (
        {"folder/__main__.py": f"{_TF}import x\nprint(x.X)\n", "folder/x.py": "X = 3\n"},
        ["file", "folder"],
        0,
        "3",
    ),
    "hook": (
        {
            "program.py": f"{_TF}import sys\nsys.excepthook = lambda *_: print('its own')\nimport gin\n"
        },
        ["file", "program.py"],
        1,
        "its own",
    ),
}


@pytest.mark.parametrize("repair", ["repair", "plain"])
@pytest.mark.parametrize("name", RUNS)
def test_what_python_runs_runs(tmp_path, name, repair):
    files, words, code, output = RUNS[name]
    _write(tmp_path, files)
    ended = _run(tmp_path, repair, *words)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (code, output, "")


def test_an_error_in_a_repaired_module_is_shown_without_our_frames(tmp_path):
    _write(
        tmp_path,
        {
            "program.py": "import beside\n\n\nbeside.fail({})\n",
            "beside.py": "import tensorflow.nothing\n\n\ndef fail(x):\n    raise KeyError(x.iteritems())\n",
            "tensorflow/__init__.py": "",
            "tensorflow/nothing.py": "",
        },
    )
    ended = _run(tmp_path, "repair", "file", "program.py")
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/program.py", line 4, in <module>',
        "    beside.fail({})",
        f'  File "{tmp_path}/beside.py", line 5, in fail',
        "    raise KeyError(x.iteritems())",
        "KeyError: dict_items([])",
    ]


def test_a_syntax_error_that_is_of_today_keeps_its_traceback(tmp_path):
    _write(tmp_path, {"program.py": "import beside\n", "beside.py": f"{_TF}x = = 1\n"})
    ended = _run(tmp_path, "repair", "file", "program.py")
    assert ended.stderr.splitlines()[-1] == "SyntaxError: invalid syntax"
    assert "tfx_tpu_trainer" not in ended.stderr
    assert "importlib" not in ended.stderr


@row(
    "doctor",
    "`python -m tfx_tpu_trainer.compat --repair a.ipynb`",
    "a.ipynb is a notebook. Convert it to a program first: jupyter nbconvert --to script a.ipynb",
)
def test_a_notebook_is_told_how_to_become_a_program(tmp_path, refused):
    (tmp_path / "a.ipynb").write_text("{}", encoding="utf-8")
    ended = run_compat(["--repair", "a.ipynb"], cwd=tmp_path)
    refused.output(ended)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1

"""`python -m tfx_tpu_trainer.compat PROGRAM` runs as python does; what is wrong with a program is one line."""

import pathlib
import shlex
import subprocess
import sys

import pytest

from tests.bad_input import case, row
from tests.programs.fetching import REPOSITORY
from tests.programs.running import run_compat
from tfx_tpu_trainer.compat.__main__ import separate


@pytest.mark.parametrize(
    ("words", "separated"),
    [
        ("prog.py --emulate", "-- prog.py --emulate"),
        ("--emulate prog.py -m x", "--emulate=8 -- prog.py -m x"),
        ("--emulate 4 prog.py 5", "--emulate=4 -- prog.py 5"),
        ("--emulate=4 -m pkg.mod --flag", "--emulate=4 -m pkg.mod -- --flag"),
        ("-mpkg.mod -m x", "-mpkg.mod -- -m x"),
        ("--emulate -- -odd.py", "--emulate=8 -- -odd.py"),
        (
            "--repair --repair-package sonnet prog.py --repair x",
            "--repair --repair-package sonnet -- prog.py --repair x",
        ),
        ("-m", "-m"),
        ("", "--"),
    ],
)
def test_the_programs_words_are_its_own(monkeypatch, words, separated):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", raising=False)
    assert separate(words.split()) == separated.split()


def test_replicas_of_the_environment_stay(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", "2")
    assert separate(["--emulate", "prog.py"]) == ["--emulate=2", "--", "prog.py"]
    assert separate(["--emulate", "4", "prog.py"]) == ["--emulate=4", "--", "prog.py"]


@pytest.mark.parametrize(
    "words",
    [
        case(
            "doctor",
            f"`python -m tfx_tpu_trainer.compat {shlex.join(words)}`",
            "python -m tfx_tpu_trainer.compat: ",
            says,
            values=(words,),
        )
        for words, says in (
            ([], "name a program, or a module with -m."),
            (
                ["no_such_program.py"],
                "can't open the program 'no_such_program.py': no such file or",
            ),
            (
                ["-m", "no_such_package.module"],
                "can't find the module 'no_such_package.module': check",
            ),
            (["--emulated", "x.py"], "--emulated"),
            (["--emulate=0", "x.py"], "0 is not in the range 1<=x<=1024"),
            (["--emulate=99999999999", "x.py"], "99999999999 is not in the range 1<=x<=1024"),
            (["-m"], "Option '-m' requires an argument."),
            (["-m", ""], "can't find the module '': check"),
            (["-m", "../x"], "can't find the module '../x': check"),
            (
                ["--repair-package=no_such_package", "tests"],
                "can't find the package 'no_such_package' to",
            ),
        )
    ],
)
def test_a_wrong_call_is_one_line_and_2(words, refused):
    ended = run_compat(words)
    refused.output(ended)
    assert ended.returncode == 2 and ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1


# Runs a file or module like the command, without the installation (TensorFlow takes seconds); with --repair if that is
# the first word.
_RUN = """
import functools, os, sys
from tfx_tpu_trainer.compat import _program as program
# As `python -m` has it.
sys.path[0] = os.getcwd()
repair, kind, name, *words = sys.argv[1:]
make_loader = None
if repair == "repair":
    from tfx_tpu_trainer.compat import _repairs
    own = _repairs.files_of_program if kind == "file" else _repairs.files_of_module
    repairs = _repairs.repair_imports(own(name).roots)
    make_loader = functools.partial(_repairs.RepairingFileLoader, repairs=repairs)
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


SEEN = """
import sys, __main__
print(sys.argv, __name__, __file__, __main__ is sys.modules[__name__], __main__.__dict__ is globals())
print([path for path in sys.path if "site-packages" not in path and "lib/python" not in path][:1])
print(__package__, __spec__ and __spec__.name, __doc__, sorted(name for name in globals() if name[:2] != "__"))
"""


def _run_both(tmp_path, words: list[str], kind: str):
    """Runs a program with python and with our runner, in the same folder."""
    python = [sys.executable, *(["-m"] if kind == "module" else []), *words]
    theirs = subprocess.run(
        python, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    return theirs, _run(tmp_path, "plain", kind, *words)


def write_nothing(path):
    del path


@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        case(
            "doctor",
            f"`python -m tfx_tpu_trainer.compat` of {given}",
            f"python -m tfx_tpu_trainer.compat: can't run '{name}': ",
            *says,
            "Give a program's file, a folder or an archive with a __main__.py",
            values=(kind, name, make),
        )
        for given, kind, name, make, *says in (
            (
                "a folder without `__main__.py`",
                "file",
                "folder",
                pathlib.Path.mkdir,
                "can't find '__main__' module in 'folder'",
            ),
            (
                "a null byte",
                "file",
                "a.py",
                lambda path: path.write_bytes(b"x = " + b" " * 99 + b"\0"),
            ),
            (
                "a module that is not in its package",
                "module",
                "json.no",
                write_nothing,
                "No module named",
            ),
        )
    ],
)
def test_a_program_that_never_began_is_one_line(tmp_path, kind, name, make, refused):
    make(tmp_path / name)
    ended = _run(tmp_path, "plain", kind, name)
    refused.output(ended)
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1


PROGRAMS = {
    "what_it_sees": SEEN,
    "exit_code": "import sys; print('said'); sys.exit(7)",
    "exit_words": "raise SystemExit('the reason')",
    "exit_none": "raise SystemExit",
    "error": "def deep():\n    raise ValueError('bad')\n\n\ndeep()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n",
    "syntax": "x = = 1\n",
    "import_error": "from sys import no_such_name\n",
    "package.of_a_bad_one": "",
    "neighbour": "import beside\nprint(beside.VALUE)\n",
    "future": "print(type(1 if True else 2)); x: 'int' = 1\nprint(__annotations__)\n",
    "pickle": (
        "import pickle\n\nclass Mine:\n    pass\n\n"
        "print(type(pickle.loads(pickle.dumps(Mine()))) is Mine)\n"
    ),
    "at_exit": "import atexit, __main__\natexit.register(lambda: print(__main__.x))\nx = 5\n",
    "unicode": "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
}


# A file is in no package.
_OF_A_PACKAGE = "package.of_a_bad_one"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("file", name) for name in PROGRAMS if name != _OF_A_PACKAGE]
    + [("module", name) for name in PROGRAMS],
)
def test_it_is_as_with_python(tmp_path, kind, name):
    if name == _OF_A_PACKAGE:
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "__init__.py").write_text("1 / 0\n", encoding="utf-8")
    encoding = "latin-1" if name == "unicode" else "utf-8"
    (tmp_path / f"{name}.py").write_text(PROGRAMS[name], encoding=encoding)
    (tmp_path / "beside.py").write_text("VALUE = 3\n", encoding="utf-8")
    words = [f"{name}.py" if kind == "file" else name, "--flag", "a b"]
    theirs, ours = _run_both(tmp_path, words, kind)
    assert ours.returncode == theirs.returncode
    assert ours.stdout == theirs.stdout
    # `python -m` shows its own runner's frames; we show the program's alone.
    shown = [line for line in theirs.stderr.splitlines() if "runpy" not in line]
    if kind == "file":
        assert ours.stderr == theirs.stderr
    else:
        assert set(ours.stderr.splitlines()) <= set(shown)
        assert ours.stderr.splitlines()[-1:] == shown[-1:]
    assert "tfx_tpu_trainer" not in ours.stderr


_TF = "# Of tensorflow's first years.\n"
ERRORS = {
    "missing_tpu": (
        {
            "program.py": (
                f"{_TF}from tpu_cluster_resolver import TPUClusterResolver\nTPUClusterResolver('a')\n"
            ),
            # It has the name of TensorFlow's file, and fails in the same way: the real one takes seconds to import.
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

"""`python -m tfx_tpu_trainer.compat PROGRAM`: the program runs as python would run it."""

from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys

import pytest

from tests.bad_input import case
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


# Runs a file or module as the command does, without what it installs: TensorFlow takes seconds.
_RUN = """
import os
import sys
from tfx_tpu_trainer.compat import _program as program
# As `python -m` has it.
sys.path[0] = os.getcwd()
kind, name, *words = sys.argv[1:]
sys.exit((program.run_file if kind == "file" else program.run_module)(name, words))
"""

SEEN = """
import sys, __main__
print(sys.argv, __name__, __file__, __main__ is sys.modules[__name__], __main__.__dict__ is globals())
print([path for path in sys.path if "site-packages" not in path and "lib/python" not in path][:1])
print(__package__, __spec__ and __spec__.name, __doc__, sorted(name for name in globals() if name[:2] != "__"))
"""


def _run_both(tmp_path, words: list[str], kind: str):
    """Runs a program with python and with our runner, in the same folder."""
    python = [sys.executable, *(["-m"] if kind == "module" else []), *words]
    (tmp_path / "ours").mkdir(exist_ok=True)
    return [
        subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        for command, environment in (
            (python, {"PATH": ""}),
            (
                [sys.executable, "-c", _RUN, kind, *words],
                {"PATH": "", "PYTHONPATH": str(REPOSITORY)},
            ),
        )
    ]


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
    ended = subprocess.run(
        [sys.executable, "-c", _RUN, kind, name],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
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


def test_a_folder_runs_its_main(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(SEEN, encoding="utf-8")
    theirs, ours = _run_both(tmp_path, ["folder", "x"], "file")
    assert ours.returncode == theirs.returncode == 0
    assert ours.stdout.splitlines()[0] == theirs.stdout.splitlines()[0]


ESTIMATOR_PROGRAM = """
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator


def model_fn(features, labels, mode, params):
    print("rows", params["batch_size"], features["x"].shape[0])
    weight = tf.get_variable("weight", initializer=0.0)
    loss = tf.reduce_mean(tf.square(features["x"] * weight - labels))
    optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    return tf_estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step())
    )


def input_fn(params):
    x = np.ones(16, np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, 3 * x)).repeat().batch(
        params["batch_size"], drop_remainder=True
    )


def main(argv):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(argv[1])
    config = tf_estimator.tpu.RunConfig(
        cluster=resolver, tpu_config=tf_estimator.tpu.TPUConfig(iterations_per_loop=5)
    )
    trained = tf.estimator.tpu.TPUEstimator(model_fn, config=config, train_batch_size=16)
    trained.train(input_fn, max_steps=10)
    print("weight", trained.get_variable_value("weight"))
    print("layers", tf.layers.Dense.__module__)
    return int(argv[2])


if __name__ == "__main__":
    tf.app.run(main)
"""


# test_pages.py and test_repair_command.py run such programs in `make test`.
@pytest.mark.e2e
@pytest.mark.sweep
def test_a_tpu_program_runs_on_emulated_cores(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ESTIMATOR_PROGRAM, encoding="utf-8")
    ended = run_compat(["--emulate", "2", "program.py", "tpu-of-nobody", "7"], cwd=tmp_path)
    assert ended.returncode == 7, ended.stderr
    # 3 - 3 * (1 - 2 * 0.1)^10: one step of mean squares takes a fifth of the distance.
    said = dict(line.split(maxsplit=1) for line in ended.stdout.splitlines())
    assert float(said["weight"]) == pytest.approx(3 - 3 * 0.8**10, rel=1e-5)
    assert said["rows"] == "8 8"
    assert said["layers"].startswith("tf_keras.")

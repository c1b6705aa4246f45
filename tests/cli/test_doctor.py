"""`tfx-tpu-trainer doctor`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tfx_tpu_trainer.cli.main import main

OLD = "import tensorflow as tf\nx = tf.placeholder(tf.float32)  # kept\ny = tf.contrib.nccl\n"
NEW = OLD.replace("import tensorflow as", "import tensorflow.compat.v1 as")
FINE = "import tensorflow as tf\nmodel = tf.estimator.LinearRegressor([])\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "old.py").write_text(OLD, encoding="utf-8")
    (tmp_path / "fine.py").write_text(FINE, encoding="utf-8")
    return tmp_path


def doctor(*arguments):
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def test_findings_are_told_with_file_line_and_edit(folder):
    result = doctor(folder)
    assert result.exit_code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert (
        lines[lines.index(str(folder / "fine.py")) + 1]
        == "2:9  works  tf.estimator.LinearRegressor"
    )
    old = lines.index(str(folder / "old.py"))
    assert lines[old + 1] == "1:1  edit, --fix makes it  import tensorflow as tf"
    assert "-> import tensorflow.compat.v1 as tf" in lines
    assert "3:5  edit  tf.contrib.nccl" in lines
    assert lines[-1] == (
        "2 files; 2 edits needed, 1 of them made by --fix; 0 notes; 1 that work as they are."
    )
    assert (folder / "old.py").read_text(encoding="utf-8") == OLD


def test_a_program_without_edits_is_exit_code_0(folder):
    result = doctor(folder / "fine.py")
    assert result.exit_code == 0
    assert "0 edits needed" in result.stdout


def test_fix_writes_the_mechanical_edits_and_says_what_is_left(folder):
    result = doctor(folder, "--fix")
    assert result.exit_code == 1
    assert (folder / "old.py").read_text(encoding="utf-8") == NEW
    assert (folder / "fine.py").read_text(encoding="utf-8") == FINE
    assert sorted(path.name for path in folder.iterdir()) == ["fine.py", "old.py"]
    assert "1:1  made  import tensorflow as tf" in result.stdout
    assert "2 files; 1 edit made, 1 left to be made by hand" in result.stdout
    again = doctor(folder, "--fix")
    assert "0 edits made, 1 left" in again.stdout


def test_diff_shows_the_edits_and_changes_nothing(folder):
    result = doctor(folder / "old.py", "--diff")
    assert result.exit_code == 1
    assert "\n-import tensorflow as tf\n+import tensorflow.compat.v1 as tf\n" in result.stdout
    assert (folder / "old.py").read_text(encoding="utf-8") == OLD


def test_json_is_one_object(folder):
    result = doctor(folder, "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["summary"] == {
        "files": 2, "made": 0, "fixable": 1, "works": 1, "edit": 2, "note": 0,
    }  # fmt: skip
    first = told["files"][1]["findings"][0]
    assert (first["line"], first["verdict"], first["fixable"]) == (1, "edit", True)
    assert first["edit"] == "import tensorflow.compat.v1 as tf"
    fixed = json.loads(doctor(folder, "--json", "--fix").stdout)
    assert fixed["summary"]["made"] == 1
    assert [each["name"] for each in fixed["files"][1]["made"]] == ["import tensorflow as tf"]


def test_what_cannot_be_read_is_exit_code_2(folder):
    (folder / "python2.py").write_text("import tensorflow\nprint 'a'\n", encoding="utf-8")
    result = doctor(folder)
    assert result.exit_code == 2
    assert "python2.py: line 2" in result.stderr
    # The others are told all the same.
    assert "3 edits" not in result.stdout
    assert "2 edits needed" in result.stdout
    missing = doctor(folder / "nowhere")
    assert missing.exit_code == 2
    assert "no such file or folder" in missing.stderr
    (folder / "empty").mkdir()
    empty = doctor(folder / "empty")
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert "no .py file" in empty.stderr


def test_it_imports_neither_tensorflow_nor_tfx(folder):
    program = (
        "import sys\n"
        "from tfx_tpu_trainer.cli.main import main\n"
        "try:\n"
        f"    main(['doctor', {str(folder)!r}])\n"
        "except SystemExit as exit:\n"
        "    assert exit.code == 1, exit.code\n"
        "names = ('tensorflow', 'tfx', 'keras', 'numpy')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "[]"

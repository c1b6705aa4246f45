"""`tfx-tpu-trainer doctor`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
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


def test_where_all_edits_are_mechanical_the_program_can_run_without_them(tmp_path):
    program = tmp_path / "mechanical.py"
    program.write_text(
        "import tensorflow as tf\nx = tf.placeholder(tf.float32)\n", encoding="utf-8"
    )
    last = doctor(program).stdout.splitlines()[-1]
    assert last == f"Run it as it stands: python -m tfx_tpu_trainer.compat --repair {program}"
    (tmp_path / "fine.py").write_text(FINE, encoding="utf-8")
    assert doctor(tmp_path).stdout.splitlines()[-1].endswith("--repair PROGRAM")
    for fine in (doctor(program, "--fix"), doctor(program)):
        assert "--repair" not in fine.stdout


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


def test_what_is_no_file_of_text_is_told_and_the_others_are_read(folder):
    os.mkfifo(folder / "pipe.py")
    (folder / "device.py").symlink_to("/dev/zero")
    (folder / "circle.py").symlink_to(folder / "circle.py")
    (folder / "codec.py").write_text("# coding: hex\nimport tensorflow\n")
    with (folder / "huge.py").open("wb") as file:
        file.truncate(10_000_001)
    (folder / "folder.py").mkdir()
    ended = doctor(folder, "--json")
    assert ended.exit_code == 2
    found = json.loads(ended.stdout)
    read = [str(folder / name) for name in ("fine.py", "old.py")]
    assert [each["path"] for each in found["files"]] == read
    for name, says in {
        "pipe.py": "a pipe, a device or a socket, not a file of text.",
        "device.py": "a pipe, a device or a socket, not a file of text.",
        "circle.py": "Too many levels of symbolic links. Is it yours to read?",
        "codec.py": "Is it a Python file?",
        "huge.py": "10,000,001 bytes; files of more than 10,000,000 are data, not programs",
    }.items():
        (line,) = [line for line in found["errors"] if f"{name}: " in line]
        assert says in line


@pytest.mark.parametrize("path", ["", "no/such/folder"])
def test_a_path_that_is_not_there_is_named(path):
    ended = doctor(path)
    assert ended.exit_code == 2
    assert f"Error: {path!r}: no such file or folder. Give a .py file" in ended.stderr


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


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder of 40 programs, big enough for several processes (1.2 MB), and one of Python 2."""
    folder = tmp_path_factory.mktemp("many")
    filler = f"    # {'a' * 92}\n" * 300
    for number in range(40):
        text = f"{OLD}def f{number}(x):\n{filler}    pass\n"
        (folder / f"m{number:02}.py").write_text(text, encoding="utf-8")
    (folder / "python2.py").write_text("import tensorflow\nprint 'a'\n", encoding="utf-8")
    return folder


def test_files_are_read_side_by_side_and_told_in_their_order(many):
    """In processes of its own: what they find comes back whole, and in the order of the files."""
    program = (
        "import os, resource, sys\n"
        "os.cpu_count = lambda: 2\n"
        "from tfx_tpu_trainer.cli import doctor_run\n"
        f"code = doctor_run.run({str(many)!r}, fix=False, diff=False, as_json=True)\n"
        "children = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(code, children.ru_utime > 0, file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1] == "2 True"
    told = json.loads(run.stdout)
    assert [each["path"] for each in told["files"]] == [
        str(many / f"m{number:02}.py") for number in range(40)
    ]
    assert {len(each["findings"]) for each in told["files"]} == {2}
    assert "python2.py: line 2" in told["errors"][0]


@pytest.mark.parametrize(("options", "shown"), [([], True), (["--json"], False)])
def test_a_bar_is_shown_on_a_terminal_only(many, options, shown):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tfx_tpu_trainer.cli.main", "doctor", str(many), *options]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    stdout, _ = run.communicate(timeout=60)
    written = os.read(ours, 100_000).decode(errors="replace")
    os.close(ours)
    os.close(theirs)
    assert run.returncode == 2
    assert ("Reading" in written) is shown
    assert b"Reading" not in stdout

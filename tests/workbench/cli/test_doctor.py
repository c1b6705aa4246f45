"""Tests `tfx-tpu-trainer doctor`: its output, its files and its exit codes."""

import json
import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.bad_input import case, row
from tfx_tpu_trainer.workbench.cli.main import main

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
        "2 files; 2 edits needed, 1 of them made by --fix; 0 notes; 1 that work unchanged."
    )
    assert (folder / "old.py").read_text(encoding="utf-8") == OLD


def test_a_program_without_edits_is_exit_code_0(folder):
    result = doctor(folder / "fine.py")
    assert result.exit_code == 0
    assert "0 edits needed" in result.stdout


def test_where_all_edits_are_mechanical_the_program_can_run_without_them(tmp_path):
    program = tmp_path / "all mechanical.py"
    program.write_text(
        "import tensorflow as tf\nx = tf.placeholder(tf.float32)\n", encoding="utf-8"
    )
    last = doctor(program).stdout.splitlines()[-1]
    assert last == f"Run it unchanged: python -m tfx_tpu_trainer.compat --repair '{program}'"
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
    assert "2 files; 1 edit made, 1 left to make by hand" in result.stdout
    again = doctor(folder, "--fix")
    assert "0 edits made, 1 left" in again.stdout


def test_diff_shows_the_edits_and_changes_nothing(folder):
    result = doctor(folder / "old.py", "--diff")
    assert result.exit_code == 1
    assert "\n-import tensorflow as tf\n+import tensorflow.compat.v1 as tf\n" in result.stdout
    assert (folder / "old.py").read_text(encoding="utf-8") == OLD


def test_several_paths_are_examined_in_one_call(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "more.py").write_text(OLD, encoding="utf-8")
    both = doctor(folder / "sub", folder / "old.py", folder / "sub" / "more.py")
    assert both.exit_code == 1
    assert "2 files; 4 edits needed, 2 of them made by --fix" in both.stdout
    missing = doctor(folder / "none.py", folder / "old.py")
    assert missing.exit_code == 2
    assert missing.stderr.startswith(f"Error: '{folder}/none.py': no such file or folder.")
    assert "1 file; 2 edits needed" in missing.stdout
    assert doctor().exit_code == 2


def test_edits_are_counted_alike_before_and_after(tmp_path):
    """Also calls in calls, names told once for several lines, and imports of what is a queue."""
    program = tmp_path / "program.py"
    program.write_text(
        "import tensorflow as tf\n"
        "from tensorflow.train import shuffle_batch\n"
        "tf.contrib.summary.scalar('a', tf.contrib.layers.flatten(x))\n"
        "a = tf.train.batch(1)\n"
        "b = tf.compat.v1.train.batch(1)\n"
        "c = tf.train.batch(1)\n",
        encoding="utf-8",
    )
    assert "1 file; 8 edits needed, 4 of them made by --fix;" in doctor(program).stdout
    assert "1 file; 4 edits made, 4 left to make by hand;" in doctor(program, "--fix").stdout
    after = doctor(program)
    assert "1 file; 4 edits needed, 0 of them made by --fix;" in after.stdout
    assert "tf.compat.v1.train.batch  (also lines 6, 7)" in after.stdout


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


def told_with_the_others(folder, path, refused):
    """Checks that a file is rejected and not changed, and that the other files' findings are still reported."""
    for flags in ([], ["--fix", "--diff"]):
        result = doctor(folder, *flags)
        refused.output(result)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {path}: ")
        assert result.stderr.count("\n") == 1
        assert "2 files; " in result.stdout


@pytest.mark.parametrize(
    ("name", "content"),
    [
        case("doctor", given, "Error: ", f"/{name}: {says[0]}", *says[1:], values=(name, content))
        for given, name, content, *says in (
            (
                "a program of Python 2",
                "old2.py",
                b"import tensorflow\nprint 'a'\n",
                "line 2: ",
                "(convert a Python 2 program with 2to3 first)",
            ),
            (
                "a null byte",
                "null.py",
                b"import tensorflow\n\0",
                "line 2: a null byte, which no Python program may contain.",
            ),
            (
                "bytes that are not text",
                "binary.py",
                b"\xff\xfe\0",
                "not read as text: invalid or missing encoding declaration",
            ),
            (
                "a line that is not UTF-8",
                "latin.py",
                b"import tensorflow\n\n\nx = '\xe9'\n",
                "not read as text: 'utf-8' codec can't decode byte 0xe9 in position 25",
            ),
            (
                "the codec `hex`",
                "a.py",
                b"# coding: hex\n",
                "not read as text: 'hex' is not a text",
            ),
            (
                "the codec `rot13`",
                "a.py",
                b"# coding: rot13\n",
                "not read as text: 'rot13' is not a text",
            ),
            (
                "the codec `undefined`",
                "a.py",
                b"# coding: undefined\n",
                "not read as text: ",
                "undefined encoding",
            ),
            (
                "a codec that there is not",
                "a.py",
                b"# coding: no\n",
                "not read as text: unknown encoding: no",
            ),
            (
                "half a character, by the codec `unicode_escape`",
                "a.py",
                b"# coding: unicode_escape\nimport tensorflow\nx = '\\ud800'\n",
                "not read as text: ",
                "surrogates not allowed.",
            ),
            (
                "5,000 parentheses",
                "deep.py",
                b"import tensorflow\n" + b"(" * 5000 + b")" * 5000,
                "line 2: too many nested parentheses",
            ),
            (
                "50,000 signs in front of a number",
                "signs.py",
                b"import tensorflow\nx = " + b"-" * 50_000 + b"1\n",
                "line 1: too deeply nested to parse",
            ),
            (
                "a number of 10,000 digits",
                "digits.py",
                b"import tensorflow\nx = " + b"9" * 10_000,
                "line 2: Exceeds the limit (4300) for integer string conversion: value has 10000",
            ),
            (
                "an empty notebook",
                "a.ipynb",
                b"",
                "line 1: not valid JSON (Expecting value), which a notebook is.",
            ),
            (
                "a notebook cut off",
                "a.ipynb",
                b'{"cells": [',
                "line 1: not valid JSON (",
                "), which a notebook is.",
            ),
            (
                "a program named .ipynb",
                "a.ipynb",
                b"import tensorflow",
                "line 1: not valid JSON (",
                "), which a notebook is.",
            ),
            (
                "a notebook that is a list",
                "a.ipynb",
                b"[]",
                "not a notebook of format 4",
                "nbconvert",
            ),
            (
                "a notebook of format 3",
                "a.ipynb",
                b'{"worksheets": []}',
                "not a notebook of format 4, the one with cells. Convert an older one with `jupyter",
            ),
            (
                "a notebook nested 100,000 deep",
                "a.ipynb",
                b"[" * 100_000,
                "JSON that is nested too deeply to be read.",
            ),
            (
                "a notebook with a number of 5,000 digits",
                "a.ipynb",
                b'{"x": ' + b"9" * 5000 + b"}",
                "JSON with a number of thousands of digits, which is not read.",
            ),
            ("a notebook in Latin-1", "a.ipynb", b'{"cells": "\xff"}', "not read as text: "),
        )
    ],
)
def test_what_is_no_program_is_told_and_the_others_are_read(folder, name, content, refused):
    (folder / name).write_bytes(content)
    told_with_the_others(folder, folder / name, refused)
    assert (folder / name).read_bytes() == content


def make_huge(path):
    with path.open("wb") as file:
        file.truncate(10_000_001)


@pytest.mark.parametrize(
    "make",
    [
        case("doctor", f"{given} in the folder", "Error: ", "/a.py: ", *says, values=make)
        for given, make, *says in (
            ("a pipe", os.mkfifo, "a pipe, a device or a socket, not a text file"),
            (
                "a link to `/dev/zero`",
                lambda path: path.symlink_to("/dev/zero"),
                "a pipe, a device or a socket, not a text file",
            ),
            (
                "a link to itself",
                lambda path: path.symlink_to("a.py"),
                "Too many levels of symbolic links.",
            ),
            (
                "a link to nothing",
                lambda path: path.symlink_to("nowhere.py"),
                "No such file or directory.",
            ),
            (
                "10,000,001 bytes",
                make_huge,
                "10,000,001 bytes; files of more than 10,000,000 are data",
            ),
        )
    ],
)
def test_what_is_no_file_of_text_is_told_and_the_others_are_read(folder, make, refused):
    make(folder / "a.py")
    told_with_the_others(folder, folder / "a.py", refused)


def test_a_folder_with_the_name_of_a_program_is_one(folder):
    (folder / "folder.py").mkdir()
    assert doctor(folder).stderr == ""


@pytest.mark.parametrize(
    "path",
    [
        case(
            "doctor",
            f"`doctor {path!r}`",
            f"Error: {path!r}: no such file or folder. Give a .py file, a notebook",
            values=path,
        )
        for path in ("", "no/such/folder", "a\0b")
    ],
)
def test_a_path_that_is_not_there_is_named(path, refused):
    ended = doctor(path)
    refused.output(ended)
    assert ended.exit_code == 2


@row(
    "doctor",
    "a folder without programs",
    "no .py file and no notebook. Give one that contains a program",
)
def test_a_folder_without_programs_is_named(tmp_path, refused):
    ended = doctor(tmp_path)
    refused.output(ended)
    assert (ended.exit_code, ended.stdout) == (2, "")


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
    """In separate processes: their findings arrive complete, and in the order of the files."""
    program = (
        "import os, resource, sys\n"
        "os.cpu_count = lambda: 2\n"
        "from tfx_tpu_trainer.workbench.cli import doctor_run\n"
        f"code = doctor_run.run([{str(many)!r}], fix=False, diff=False, as_json=True)\n"
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
    command = [
        sys.executable,
        "-m",
        "tfx_tpu_trainer.workbench.cli.main",
        "doctor",
        str(many),
        *options,
    ]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    stdout, _ = run.communicate(timeout=60)
    written = os.read(ours, 100_000).decode(errors="replace")
    os.close(ours)
    os.close(theirs)
    assert run.returncode == 2
    assert ("Reading" in written) is shown
    assert b"Reading" not in stdout


# `tfx-tpu-trainer compat`: the program's own words are left alone.

PROGRAM = """
import sys

assert "tfx_tpu_trainer.workbench.cli.main" not in sys.modules
import tensorflow as tf

print(sys.argv[1:], tf.estimator.Estimator.__module__.partition(".")[0], __name__)
sys.exit(3)
"""


def test_a_program_runs_with_its_words_and_exit_code(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main", "compat"),
            *("--emulate", "2", str(program), "--help", "-x", "1"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == "['--help', '-x', '1'] tfx_tpu_trainer __main__\n"

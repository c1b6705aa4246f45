"""scripts/setup_environment: which Python it takes, what it leaves alone, and that only a whole set-up counts."""

from __future__ import annotations

import pytest

from tests.setup.conftest import INCOMPLETE_PYTHON, PYTHON

NOT_CHOSEN_SHIM = "#!/bin/sh\necho 'pyenv: python3.10: command not found' >&2\nexit 127\n"
# Answers the question and can do nothing else, as one that is not wanted should never be asked to.
OTHER_PYTHON = (
    '#!/bin/sh\n[ "$*" = "-I -" ] && cat >/dev/null && echo "VERSION $0" && exit\nexit 1\n'
)


def test_sets_up_once_and_then_does_nothing(with_python):
    first = with_python.set_up()
    assert first.returncode == 0, first.stderr
    assert with_python.is_set_up
    calls = with_python.calls()

    second = with_python.set_up()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert with_python.calls() == calls


def test_installs_from_the_locks_with_hashes_only(with_python):
    with_python.set_up()
    locked = with_python.calls(".lock")
    assert len(locked) == 2
    assert all("--require-hashes" in call for call in locked)
    (package,) = with_python.calls("--editable")
    assert "--no-deps --no-build-isolation" in package


def test_a_python_without_venv_is_named_with_what_to_install(checkout):
    checkout.add_python("3.10", text=INCOMPLETE_PYTHON)
    last = checkout.lacking()
    assert "Python 3.10 lacks module ensurepip, Python.h" in last
    assert "python3.10-venv" in last


def test_finds_the_python_that_no_pyenv_shim_chooses(checkout):
    checkout.add_python("3.10", text=NOT_CHOSEN_SHIM)
    python = checkout.pyenv / "versions" / "3.10.13" / "bin" / "python"
    checkout.add_program(python, PYTHON.replace("VERSION", "3.10"))
    run = checkout.set_up()
    assert run.returncode == 0, run.stderr
    assert str(python) in run.stderr


def test_takes_a_python3_that_is_3_10(checkout):
    checkout.add_python("3.10", name="python3")
    assert checkout.set_up().returncode == 0


def test_passes_by_a_python3_that_is_another(checkout):
    checkout.add_python("3.9", name="python3", text=OTHER_PYTHON)
    checkout.add_python("3.10")
    assert checkout.set_up().returncode == 0


def test_no_compiler_is_one_clear_line(with_python):
    (with_python.bin / "c++").unlink()
    run = with_python.set_up()
    assert run.returncode != 0
    (line,) = run.stderr.splitlines()
    assert "install g++" in line


def test_an_unknown_argument_is_one_clear_line(with_python):
    assert "'newest' is not known" in with_python.refusal("newest")


def test_the_users_active_environment_is_left_alone(with_python, tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "pyvenv.cfg").write_text("home = elsewhere\n", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in theirs.rglob("*")}

    run = with_python.set_up(
        VIRTUAL_ENV=str(theirs), PYTHONPATH=str(theirs), PIP_REQUIRE_VIRTUALENV="1"
    )
    assert run.returncode == 0, run.stderr
    assert {path: path.stat().st_mtime_ns for path in theirs.rglob("*")} == before
    assert with_python.calls()
    assert with_python.calls() == with_python.calls("[VIRTUAL_ENV=] [PYTHONPATH=]")
    assert not (with_python.root / ".venv").exists()


def test_an_interrupted_set_up_does_not_count_and_is_made_anew(with_python):
    with_python.kill_while_installing()
    assert with_python.venv.exists()
    assert not with_python.is_set_up
    (with_python.venv / "leftover").touch()

    run = with_python.set_up()
    assert run.returncode == 0, run.stderr
    assert with_python.is_set_up
    assert not (with_python.venv / "leftover").exists()


def test_an_interrupted_renewal_does_not_leave_the_old_stamp(with_python):
    with_python.set_up()
    (with_python.root / "requirements" / "dev.lock").write_text("some-package==2.0\n")
    (with_python.notes / "calls").unlink()
    with_python.kill_while_installing()
    assert not with_python.is_set_up


@pytest.mark.parametrize(
    "name",
    [
        "setup.py",
        "requirements/dev.lock",
        "requirements/bootstrap.lock",
        "scripts/setup_environment",
        "scripts/make_venv.sh",
    ],
)
def test_a_changed_input_is_set_up_anew(with_python, name):
    with_python.set_up()
    with (with_python.root / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    with_python.set_up()
    assert len(with_python.calls("-m venv")) == 2


def test_the_lock_of_another_line_changes_nothing(with_python):
    with_python.set_up()
    (with_python.root / "requirements/tfx-1.21/dev.lock").write_text("some-package==2.0\n")
    assert with_python.set_up().stderr == ""


def test_a_moved_checkout_is_set_up_anew(with_python):
    with_python.set_up()
    moved = with_python.root.with_name("moved")
    with_python.root.rename(moved)
    with_python.root.symlink_to(moved)
    with_python.set_up()
    assert len(with_python.calls("-m venv")) == 2


def test_two_calls_at_once_make_one_environment(with_python):
    both = [with_python.start(), with_python.start()]
    errors = [process.communicate(timeout=30)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert len(with_python.calls("-m venv")) == 1


def test_pip_takes_over_where_uv_fails(with_python):
    (with_python.notes / "uv-fails").touch()
    run = with_python.set_up()
    assert run.returncode == 0, run.stderr
    assert "python -m pip install --require-hashes" in with_python.calls("dev.lock")[-1]


def test_a_failed_install_shows_why_and_does_not_count(with_python):
    (with_python.notes / "uv-fails").touch()
    (with_python.notes / "python-fails").touch()
    run = with_python.set_up()
    assert run.returncode != 0
    assert "no such host" in run.stderr
    assert "failed while installing requirements/dev.lock" in run.stderr.splitlines()[-1]
    assert not with_python.is_set_up

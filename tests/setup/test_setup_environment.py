"""scripts/setup_environment: which Python it takes, what it leaves alone, and that only a whole set-up counts."""

from __future__ import annotations

import time

import pytest

NOT_CHOSEN_SHIM = "#!/bin/sh\necho 'pyenv: python3.10: command not found' >&2\nexit 127\n"
# Any other Python says nothing to the question, and this one cannot make virtual environments either.
PYTHON_3_11 = '#!/bin/sh\n[ "$*" = "-I - 3.10" ] && cat >/dev/null && exit\nexit 1\n'
PYTHON_3_10_OF_DEBIAN = "#!/bin/sh\ncat >/dev/null\necho 'lacks module ensurepip, Python.h'\n"


@pytest.fixture
def with_python(checkout):
    checkout.add_python(checkout.bin / "python3.10")
    return checkout


def test_sets_up_once_and_then_does_nothing(with_python):
    first = with_python.set_up()
    assert first.returncode == 0, first.stderr
    assert with_python.is_set_up
    calls = with_python.calls()

    start = time.monotonic()
    second = with_python.set_up()
    assert time.monotonic() - start < 1
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert with_python.calls() == calls


def test_installs_from_the_locks_with_hashes_only(with_python):
    with_python.set_up()
    locked = with_python.calls(".lock")
    assert len(locked) == 2
    assert all("--require-hashes" in call for call in locked)
    (package,) = with_python.calls("--editable")
    assert "--no-deps --no-build-isolation" in package


def test_no_python_is_one_clear_line_and_a_failure(checkout):
    checkout.add_python(checkout.bin / "python3", PYTHON_3_11)
    run = checkout.set_up()
    assert run.returncode != 0
    last = run.stderr.splitlines()[-1]
    assert "Python 3.10 is needed" in last
    assert "install it" in last
    assert not checkout.venv.exists()


def test_a_python_without_venv_is_named_with_what_to_install(checkout):
    checkout.add_python(checkout.bin / "python3.10", PYTHON_3_10_OF_DEBIAN)
    run = checkout.set_up()
    assert run.returncode != 0
    last = run.stderr.splitlines()[-1]
    assert "python3.10 lacks module ensurepip, Python.h" in last
    assert "python3.10-venv" in last


def test_finds_the_python_that_no_pyenv_shim_chooses(checkout):
    checkout.add_python(checkout.bin / "python3.10", NOT_CHOSEN_SHIM)
    python = checkout.pyenv / "versions" / "3.10.13" / "bin" / "python"
    checkout.add_python(python)
    run = checkout.set_up()
    assert run.returncode == 0, run.stderr
    assert str(python) in run.stderr


def test_takes_a_python3_that_is_3_10(checkout):
    checkout.add_python(checkout.bin / "python3")
    assert checkout.set_up().returncode == 0


def test_no_compiler_is_one_clear_line(with_python):
    (with_python.bin / "c++").unlink()
    run = with_python.set_up()
    assert run.returncode != 0
    (line,) = run.stderr.splitlines()
    assert "install g++" in line


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
    "name", ["setup.py", "requirements/dev.lock", "requirements/bootstrap.lock"]
)
def test_a_changed_input_is_set_up_anew(with_python, name):
    with_python.set_up()
    with (with_python.root / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    with_python.set_up()
    assert len(with_python.calls("-m venv")) == 2


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

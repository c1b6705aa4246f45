"""Tests scripts/setup_environment: its Python and TFX line, and that only a complete set-up counts."""

import pytest

from tests.setup.conftest import INCOMPLETE_PYTHON, PYTHON

NEW_GLIBC = "2.41"
NOT_CHOSEN_SHIM = "#!/bin/sh\necho 'pyenv: python3.10: command not found' >&2\nexit 127\n"


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


def _locks(checkout) -> list[str]:
    """The dev locks that were installed, as folders below the checkout's requirements/."""
    prefix = f"{checkout.root}/requirements/"
    words = [
        word for call in checkout.calls("dev.lock") for word in call.split(prefix)[1:]
    ]  # the checkout's name has spaces
    return [word.split()[0] for word in words]


@pytest.mark.parametrize(
    ("glibc", "pythons", "lock", "said"),
    [
        # Debian 12 and an older one, whatever other Pythons are installed.
        ("2.36", ["3.10", "3.12"], "dev.lock", "TFX 1.16 on Python 3.10 (glibc 2.36 is here"),
        ("2.31", ["3.10"], "dev.lock", "TFX 1.16 on Python 3.10 (glibc 2.31 is here"),
        # Debian 13 and Ubuntu 24.04.
        ("2.39", ["3.12"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.12 (glibc 2.39 and"),
        ("2.41", ["3.10", "3.11"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.11"),
        ("2.41", ["3.11", "3.12", "3.13"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.12"),
        ("2.41", ["3.10"], "dev.lock", "(there is no Python 3.12, 3.13 or 3.11)"),
        # Fedora's glibc is numbered with three parts while it is a preview.
        (
            "2.40.9000",
            ["3.13"],
            "tfx-1.21/dev.lock",
            "TFX 1.21 on Python 3.13 (glibc 2.40.9000 and",
        ),
    ],
)
def test_the_line_that_fits_is_taken_and_said_in_one_line(checkout, glibc, pythons, lock, said):
    checkout.set_glibc(glibc)
    for version in pythons:
        checkout.add_python(version)
    run = checkout.set_up()
    assert run.returncode == 0, run.stderr
    assert _locks(checkout) == [lock]
    (line,) = [line for line in run.stderr.splitlines() if "TFX" in line]
    assert said in line


def test_a_python_that_cannot_be_used_is_the_reason_for_the_older_line(checkout):
    checkout.set_glibc(NEW_GLIBC)
    checkout.add_python("3.12", text=INCOMPLETE_PYTHON)
    checkout.add_python("3.10")
    run = checkout.set_up()
    assert run.returncode == 0, run.stderr
    assert "TFX 1.16 on Python 3.10 (Python 3.12 lacks module ensurepip" in run.stderr


@pytest.mark.parametrize(
    ("line", "lock", "version"),
    [("1.16", "dev.lock", "3.10"), ("1.21", "tfx-1.21/dev.lock", "3.12")],
)
def test_a_line_that_is_asked_for_is_taken(checkout, line, lock, version):
    checkout.set_glibc(NEW_GLIBC)
    checkout.add_python("3.10")
    checkout.add_python("3.12")
    run = checkout.set_up(LINE=line)
    assert run.returncode == 0, run.stderr
    assert _locks(checkout) == [lock]
    assert f"TFX {line} on Python {version} (LINE={line})" in run.stderr


def test_another_line_is_made_anew_and_the_same_is_not(checkout):
    checkout.set_glibc(NEW_GLIBC)
    checkout.add_python("3.10")
    checkout.add_python("3.12")
    checkout.set_up()
    assert checkout.set_up(LINE="1.21").stderr == ""
    checkout.set_up(LINE="1.16")
    assert checkout.set_up(LINE="1.16").stderr == ""
    # Without LINE, a mere request is not what the machine gets.
    checkout.set_up()
    assert checkout.set_up().stderr == ""
    assert _locks(checkout) == ["tfx-1.21/dev.lock", "dev.lock", "tfx-1.21/dev.lock"]


def test_what_was_asked_for_and_fits_stays(with_python):
    with_python.set_up(LINE="1.16")
    assert with_python.set_up().returncode == 0
    assert with_python.set_up().stderr == ""
    assert len(with_python.calls("-m venv")) == 1


def test_a_newer_glibc_is_noticed(checkout):
    checkout.add_python("3.10")
    checkout.add_python("3.12")
    checkout.set_up()
    checkout.set_glibc(NEW_GLIBC)
    checkout.set_up()
    assert _locks(checkout) == ["dev.lock", "tfx-1.21/dev.lock"]


def test_an_unknown_line_is_one_clear_line(with_python):
    assert "LINE=1.17 is neither 1.16 nor 1.21" in with_python.refusal(LINE="1.17")


def test_the_newest_line_on_an_older_glibc_says_so_and_names_the_way(checkout):
    checkout.add_python("3.12")
    last = checkout.refusal(LINE="1.21")
    assert "LINE=1.21 needs glibc 2.39 or newer, and 2.36 is here" in last
    assert "make test-latest" in last


@pytest.mark.parametrize(
    ("glibc", "pythons", "here", "version"),
    [
        ("2.36", [], "here: no Python 3, glibc 2.36", "3.10"),
        ("2.36", ["3.12", "3.8"], "here: Python 3.12, 3.8, glibc 2.36", "3.10"),
        ("2.41", ["3.9"], "here: Python 3.9, glibc 2.41", "3.12"),
    ],
)
def test_no_python_that_fits_is_one_clear_line(checkout, glibc, pythons, here, version):
    checkout.set_glibc(glibc)
    for python in pythons:
        checkout.add_python(python, name="python3" if python in ("3.8", "3.9") else "")
    last = checkout.lacking()
    assert here in last
    assert "needed: Python 3.10 (TFX 1.16), or Python 3.12, 3.13 or 3.11 and glibc 2.39" in last
    assert f"'pyenv install {version}'" in last


def test_a_glibc_that_fits_neither_line_is_one_clear_line(with_python):
    with_python.set_glibc("2.28")
    last = with_python.refusal()
    assert "here: glibc 2.28; needed: glibc 2.31 or newer (TFX 1.16), or 2.39" in last
    assert "container" in last


def test_another_c_library_is_one_clear_line(with_python):
    with_python.set_glibc(None)
    assert "the C library here is not glibc" in with_python.refusal()

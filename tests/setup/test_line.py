"""Which line of TFX scripts/setup_environment takes on which machine, and what it says where none fits."""

from __future__ import annotations

import pytest

from tests.setup.conftest import INCOMPLETE_PYTHON

NEW_GLIBC = "2.41"


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
        # Debian 12 and an older one, whatever other Pythons are there.
        ("2.36", ["3.10"], "dev.lock", "TFX 1.16 on Python 3.10 (glibc 2.36 is here"),
        ("2.36", ["3.10", "3.12"], "dev.lock", "TFX 1.16 on Python 3.10 (glibc 2.36 is here"),
        ("2.31", ["3.10"], "dev.lock", "TFX 1.16 on Python 3.10 (glibc 2.31 is here"),
        # Debian 13 and Ubuntu 24.04.
        ("2.41", ["3.13"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.13 (glibc 2.41 and"),
        ("2.39", ["3.12"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.12 (glibc 2.39 and"),
        ("2.41", ["3.10", "3.11"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.11"),
        ("2.41", ["3.11", "3.12", "3.13"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.12"),
        ("2.41", ["3.10"], "dev.lock", "(there is no Python 3.12, 3.13 or 3.11)"),
        # Fedora's glibc is numbered with three parts while it is a preview.
        ("2.40.9000", ["3.13"], "tfx-1.21/dev.lock", "TFX 1.21 on Python 3.13"),
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
    # Without LINE, what was only asked for is not what the machine gets.
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

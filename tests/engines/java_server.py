"""Libraries of Maven Central, kept in .make/engines, and the model server of model_server/, compiled with them."""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

REPOSITORY = pathlib.Path(__file__).parents[2]
# Kept between runs; `make clean` removes it.
CACHE = REPOSITORY / ".make" / "engines"
DOWNLOAD_SECONDS = 600
# Without a version: the one that Maven brings along on this machine is available without a network.
_GOAL = "dependency:copy-dependencies"


class UnavailableError(Exception):
    """A library is not available here: there is no network, or the repository does not have it."""


def fetch(pom: pathlib.Path, **versions: str) -> pathlib.Path:
    """Returns a folder with the libraries that a pom.xml names, and with all that these need.

    Args:
        pom: The file.
        **versions: A property of the pom, and the version that is wanted in place of its own. That which the pom names
            is taken where the wanted one can't be had.

    Raises:
        UnavailableError: If one of them can't be had, with its name.
    """
    wanted = [[f"-D{name.replace('_', '.')}={value}" for name, value in versions.items()], []]
    folders = [_folder(pom, properties) for properties in wanted]
    for folder in folders:
        if folder.exists():
            return folder
    try:
        return _download(pom, wanted[0], folders[0])
    except UnavailableError:
        if not versions:
            raise
        return _download(pom, [], folders[1])


def _folder(pom: pathlib.Path, properties: list[str]) -> pathlib.Path:
    digest = hashlib.sha256(pom.read_bytes() + "".join(properties).encode()).hexdigest()
    return CACHE / f"{pom.parent.name}-{digest[:12]}"


def _download(pom: pathlib.Path, properties: list[str], folder: pathlib.Path) -> pathlib.Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as partial:
        jars = pathlib.Path(partial) / "jars"
        _run_maven(pom, f"-DoutputDirectory={jars}", *properties)
        # Where another process was quicker, its files are the same.
        if not folder.exists():
            jars.rename(folder)
    return folder


def class_path(*places: pathlib.Path) -> str:
    """The class path of folders, of their .jar files where they have some."""
    return ":".join(f"{place}/*" if any(place.glob("*.jar")) else str(place) for place in places)


def _run_maven(pom: pathlib.Path, *properties: str) -> None:
    # A file whose checksum is not the repository's ends it; a warning is all there is otherwise.
    command = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", "--file", str(pom)]
    ended = subprocess.run(
        [*command, *properties, _GOAL],
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_SECONDS,
        check=False,
    )
    if ended.returncode == 0:
        return
    said = ended.stdout + ended.stderr
    if "Checksum validation failed" not in said:
        found = re.search(
            r"(?:Could not (?:find|transfer) artifact|The following artifacts could not be resolved:) (\S+?)[ ,]|"
            r"(\S+) was not found in ",
            said,
        )
        if found:
            raise UnavailableError(
                f"{found[1] or found[2]} could not be had from Maven's repository, which is needed the first time"
            )
    raise AssertionError(f"Maven failed:\n{said[-3000:]}")


SOURCES = pathlib.Path(__file__).parent / "model_server"
NAME = "taxi"
START_SECONDS = 120


class RefusedError(Exception):
    """The server's answer to a request that it does not take."""


@dataclasses.dataclass(frozen=True)
class JavaServer:
    """A running server.

    Attributes:
        address: Of the model in its REST API.
        tensorflow: Version of its TensorFlow.
        warmup: What the warm-up requests gave: signature, rows and predictions of each.
    """

    address: str
    tensorflow: str
    warmup: Sequence[dict[str, Any]]

    def status(self) -> Any:
        return self._call(self.address, None)

    def predict(self, instances: Sequence[Any], **request: Any) -> Any:
        """Requests predictions from TensorFlow Serving, in its row format."""
        body = json.dumps({"instances": list(instances), **request}).encode()
        return self._call(f"{self.address}:predict", body)["predictions"]

    def _call(self, address: str, body: bytes | None) -> Any:
        try:
            with urllib.request.urlopen(address, data=body, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RefusedError(json.load(error)["error"]) from None


@contextlib.contextmanager
def java_server(saved_model: str, folder: pathlib.Path) -> Iterator[JavaServer]:
    """Compiles the server, starts it for a SavedModel, and ends it.

    Args:
        saved_model: Folder of the SavedModel.
        folder: Where classes, log and address go.

    Raises:
        UnavailableError: If its libraries can't be had here.
    """
    libraries = fetch(SOURCES / "pom.xml")
    classes, log, address = folder / "classes", folder / "server.log", folder / "address.json"
    subprocess.run(
        ["javac", "-Xlint:all", "-Werror", "-d", str(classes), "-cp", class_path(libraries)]
        + [str(source) for source in sorted(SOURCES.glob("*.java"))],
        check=True,
        timeout=START_SECONDS,
    )
    command = ["java", "-Xmx512m", "-cp", class_path(libraries, classes), "ModelServer"]
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, saved_model, NAME, str(address)],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not address.exists():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.05)
        told = json.loads(address.read_text("utf-8"))
        yield JavaServer(
            address=f"http://localhost:{told['port']}/v1/models/{NAME}",
            tensorflow=told["tensorflow"],
            warmup=told["warmup"],
        )
    finally:
        process.kill()
        process.wait()

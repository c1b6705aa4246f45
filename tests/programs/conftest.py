"""Cases: which program, how edited, where; what came of it goes into docs/programs.md when asked."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from benchmarks.oracle_environment import oracle_python
from tests.programs import results
from tests.programs.fetching import IN_PROOFS, UnreachableError, package_folder
from tests.programs.running import DRIVERS, HandEdit, edited_copy, run_compat, run_prove

PLACES = {"host": 0, "2 cores": 2, "8 cores": 8}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-table",
        action="store_true",
        help="write the outcomes into docs/programs.md, those of --prove into docs/how-to/prove-a-migration.md",
    )
    parser.addoption(
        "--prove",
        action="store_true",
        help="run each program under the original too, and compare: `tfx-tpu-trainer prove`",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases; a case with a cause in the program is expected to fail, and reported if it passes."""
    if config.getoption("--prove", default=False):
        items[:] = [
            item
            for item in items
            if (marker := item.get_closest_marker("program")) and marker.kwargs.get("proved", True)
        ]
    for item in items:
        if (marker := item.get_closest_marker("program")) is None:
            continue
        item.add_marker(pytest.mark.programs)
        if cause := marker.kwargs.get("cause"):
            item.add_marker(pytest.mark.xfail(strict=True, reason=cause))


class ProvedError(Exception):
    """A program was compared with the original: its files are gone, so there is nothing else to check."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Ends a test at the first run of its program if that was a proof."""
    try:
        return (yield)
    except ProvedError:
        return True


class Case:
    """One program of a package, edited in one way, in one place.

    Attributes:
        cores: Emulated cores; 0 for the host.
        calls: What the program was seen to do: `"train"`, `"resume"`, `"evaluate"`, ...
        is_proof: Whether the program runs under the original too, with `--prove`.
        proofs: The verdict of `run_prove` then.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        place: str,
        packages: Sequence[str],
        edit: str,
        repaired: Sequence[str],
        fix: Sequence[str],
        edits: Sequence[HandEdit],
        environment: Mapping[str, str],
        is_proof: bool,
        differs: str,
    ) -> None:
        self.cores = PLACES[place]
        self.calls: list[str] = []
        self.proofs: list[str] = []
        self.is_proof, self._differs = is_proof, differs
        self._environment = environment
        self._folder = folder
        self._options = ["--repair"] if edit == "--repair" else []
        for module in repaired:
            self._options += ["--repair-package", module]
        if self.cores:
            self._options += ["--emulate", str(self.cores)]
        self._packages: list[str | pathlib.Path] = [*packages]
        if fix or edits:
            copy = edited_copy(packages[0], folder / "copy", fix=fix, edits=edits)
            self._packages[0] = copy

    def run(self, *words: str, calls: Sequence[str] = ()) -> str:
        """Runs the program with these words, and notes what they made it do.

        Returns:
            What it printed.
        """
        if self.is_proof:
            proof = run_prove(
                [*self._options, *words],
                original=oracle_python(),
                packages=self._packages,
                environment=self._environment,
                cwd=self._folder,
            )
            self.proofs.append(proof)
            # A program that races holds on some days.
            holds = proof.startswith(("equal", "up to rounding", "not reproducible"))
            assert holds != bool(self._differs), (
                f"{proof}, where {self._differs or 'no difference'!r} is known"
            )
            raise ProvedError
        ended = run_compat(
            [*self._options, *words],
            packages=self._packages,
            environment=self._environment,
            cwd=self._folder,
        )
        assert ended.returncode == 0, f"{ended.stdout[-1500:]}\n{ended.stderr[-5000:]}"
        self.calls += calls
        return ended.stdout

    def drive(self, driver: str, *words: str) -> str:
        """Runs one of our own programs, which uses the package as a library.

        Its arguments are its own folder, the number of cores, and `words`. The last line of its output is `CALLS`, with
        its calls.

        Returns:
            What it printed.
        """
        folder = self._folder / "work"
        folder.mkdir(exist_ok=True)
        program = DRIVERS / f"{driver}.py"
        printed = self.run(str(program), str(folder), str(self.cores), *words)
        last = printed.strip().splitlines()[-1]
        assert last.startswith("CALLS "), printed[-3000:]
        self.calls += last.split()[1:]
        return printed


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: pathlib.Path, place: str) -> Case:
    """Returns the case in the test's marker `program`."""
    marker = request.node.get_closest_marker("program").kwargs
    is_proof = request.config.getoption("--prove")
    packages = [marker["package"], *marker.get("needs", ())]
    if is_proof:
        packages = [IN_PROOFS.get(package, package) for package in packages]
    edits = marker.get("edits", ())
    row = results.Row(
        package=marker["package"],
        program=marker["program"],
        edit=marker.get("edit", "none"),
        hand_edits=len(edits),
        place=place,
        cause=marker.get("cause", ""),
        differs=marker.get("differs", {}).get("host" if place == "host" else "cores", ""),
    )
    request.node.user_properties.append(("row", row.as_dict()))
    try:
        for package in packages:
            package_folder(package)
    except UnreachableError as error:
        pytest.exit(str(error), returncode=2)
    made = Case(
        tmp_path,
        place=place,
        packages=packages,
        edit=row.edit,
        repaired=marker.get("repaired", ()),
        fix=marker.get("fix", ()),
        edits=edits,
        environment=marker.get("environment", {}),
        is_proof=is_proof,
        differs=row.differs,
    )
    request.node.user_properties.append(("calls", made.calls))
    request.node.user_properties.append(("proofs", made.proofs))
    return made


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    results.note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # With pytest-xdist the workers end too; the controller has heard of all cases.
    if session.config.getoption("--write-table", default=False) and not hasattr(
        session.config, "workerinput"
    ):
        config = session.config
        proofs = config.getoption("--prove")
        # Not all cases are proved.
        everything = config.args == ["tests/programs"] and not config.getoption("keyword")
        results.write(whole=everything and not proofs, proofs=proofs)

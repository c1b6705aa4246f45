"""Marks the tests of engines, and says at the end which engines there were and what each one was missing."""

from __future__ import annotations

import pathlib

import pytest

from tests.engines import tools

FOLDER = pathlib.Path(__file__).parent
_NOTES = pytest.StashKey[list[str]]()


# Before pytest picks by marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.engines)


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(item.get_closest_marker("engines") for item in session.items):
        session.config.stash[_NOTES] = [*tools.report(), tools.KUBEFLOW_COMPILER]


# Before the fixtures, some of which run a pipeline.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        tools.skip_without(*marker.args)


@pytest.fixture(scope="session")
def note(request: pytest.FixtureRequest):
    """Adds a line to the run's final report."""
    return request.config.stash[_NOTES].append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _NOTES in config.stash:
        terminalreporter.section("engines")
        for line in config.stash[_NOTES]:
            terminalreporter.write_line(line)

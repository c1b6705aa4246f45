"""The tools that the engines need on this machine, and the line that says where a missing one comes from."""

import functools
import re
import shutil
import subprocess

import pytest

# Command that prints the version -> its form, and the tool's source.
_TOOLS = {
    "java": (("java", "-version"), r'version "([^"]+)"', "a JRE, 11 or newer"),
    "javac": (("javac", "-version"), r"javac (\S+)", "a JDK, 11 or newer"),
    "mvn": (
        ("mvn", "--batch-mode", "--version"),
        r"Apache Maven (\d[.\d]*)",
        "Maven, 3.6 or newer",
    ),
    "ip": (
        ("ip", "-Version"),
        r"iproute2-([\d.]+)",
        "what makes hosts with their own addresses",
    ),
}
_PACKAGES = {
    "java": "openjdk-17-jre-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "ip": "iproute2",
}

KUBEFLOW_COMPILER = (
    "Kubeflow's compiler: not run; it would come from the Go module github.com/kubeflow/pipelines, which Go's proxy "
    "refused where this was written. The rule at which it ends is checked in Python (tests/components/clusters), and "
    "what it would compile is run by the local engine of Kubeflow's SDK (tests/engines/kubeflow_local)"
)


@functools.cache
def version(tool: str) -> str | None:
    """Returns the version of a tool on PATH; None if it is missing."""
    command, form, _ = _TOOLS[tool]
    if shutil.which(command[0]) is None:
        return None
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # Java prints its version on stderr; Maven writes it bold.
    found = re.search(form, ended.stdout + ended.stderr)
    return found[1] if found else None


def missing(tool: str) -> str:
    """One line about a tool that is not there."""
    return (
        f"{tool} is missing: {_TOOLS[tool][2]}, comes from the system's packages, on Debian and Ubuntu from "
        f"{_PACKAGES[tool]}"
    )


def report() -> list[str]:
    """Returns one line for each tool: its version, or its source."""
    return [f"{tool} {version(tool)}" if version(tool) else missing(tool) for tool in _TOOLS]


def skip_without(*names: str) -> None:
    """Skips the test that runs if one of the tools is missing."""
    absent = [missing(name) for name in names if version(name) is None]
    if absent:
        pytest.skip("; ".join(absent))

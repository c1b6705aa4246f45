"""Tests the content of a run's log, and what only its debug log has."""

import re
import socket
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tfx_tpu_trainer.workbench.history.run_log import DEBUG_LOG, LINE_LIMIT, LOG, package_of

# A user's program, with other packages installed next to it.
LAUNCHER = """
import logging
logger = logging.getLogger("absl")
def run(node):
    logger.info("Component %s is running.", node)
    logger.info("Running launcher for node_info {\\n  id: %s\\n}", node)
def finish(node):
    logger.info("Cleaning up stateless execution info.")
    logger.info("Component %s is finished.", node)
"""
TRANSFORM = """
import logging, warnings
logger = logging.getLogger("absl")
def do():
    logger.info("Analyzes the train split.")
    logger.info("Got\\nseveral lines")
    logger.info("udf_utils.get_fn {}")
    logger.warning("No snappy.")
    logger.error("Bad row:\\n%s", "dump")
    warnings.warn("Not for long.", FutureWarning)
    print("a table of another package")
"""
PROGRAM = """
import os, sys, logging, warnings
from pathlib import Path
from tfx_tpu_trainer.workbench.history import run_log

log = run_log.start(Path(sys.argv[1]))
from tfx.orchestration import launcher
from tfx.components import transform

logging.info("first")
launcher.run("Transform")
transform.do()
launcher.finish("Transform")
launcher.run("Trainer")
logging.info("Trainer: the page is here")
print("my ", end="")
print("loss\\nis 3")
print("a terminal's \\x1b[31mred")
warnings.warn("my own line")
logging.warning("two\\nlines")
logging.info("a message\\nand its dump")
logging.info("x" * 1000)
sys.stdout.buffer.write(b"bytes\\n")
os.write(2, b"what C++ prints\\n")
try:
    raise ValueError("no such column")
except ValueError:
    logging.exception("it breaks off:")
launcher.finish("Trainer")
logging.info("last")
log.close()
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """The log's lines without their times, and the debug log."""
    folder = tmp_path_factory.mktemp("logs")
    for name, source in (("orchestration/launcher", LAUNCHER), ("components/transform", TRANSFORM)):
        module = folder / "site-packages" / "tfx" / f"{name}.py"
        module.parent.mkdir(parents=True)
        module.write_text(source)
        # In place of the real one, which has half a minute of imports.
        for package in (module.parent, module.parent.parent):
            (package / "__init__.py").touch()
    (folder / "program.py").write_text(PROGRAM)
    with (folder / DEBUG_LOG).open("ab") as output:
        subprocess.run(
            [sys.executable, str(folder / "program.py"), str(folder)],
            env={"PYTHONPATH": f"{folder / 'site-packages'}:{REPOSITORY}"},
            stdout=output,
            stderr=output,
            check=True,
            timeout=120,
        )
    time = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?=\w)|^(?=    )")
    lines = (folder / LOG).read_text().splitlines()
    assert all(time.match(line) for line in lines), lines
    return [time.sub("", line) for line in lines], (folder / DEBUG_LOG).read_text()


def test_a_line_has_its_level_and_the_component_that_runs(logs: tuple[list[str], str]) -> None:
    lines, _ = logs
    assert lines[0] == "INFO    runner: first"
    assert lines[1] == "INFO    Transform: running"
    assert lines[-2:] == ["INFO    Trainer: finished", "INFO    runner: last"]
    assert "INFO    Trainer: the page is here" in lines
    components = [line.split()[1] for line in lines if not line.startswith(" ")]
    assert list(dict.fromkeys(components)) == ["runner:", "Transform:", "Trainer:"]


def test_of_other_packages_the_log_has_words_of_components_and_errors(
    logs: tuple[list[str], str],
) -> None:
    lines, _ = logs
    assert [line for line in lines if " Transform: " in line] == [
        "INFO    Transform: running",
        "INFO    Transform: Analyzes the train split.",
        f"ERROR   Transform: Bad row: ... (1 more line in {DEBUG_LOG})",
        "INFO    Transform: a table of another package",
        f"INFO    Transform: finished; 2 warnings of other packages in {DEBUG_LOG}",
    ]


def test_the_log_has_what_the_users_code_prints_warns_of_and_raises(
    logs: tuple[list[str], str],
) -> None:
    lines, _ = logs
    begin = lines.index("INFO    Trainer: my loss")
    assert lines[begin + 1 : begin + 3] == [
        "INFO    Trainer: is 3",
        r"INFO    Trainer: a terminal's \x1b[31mred",
    ]
    (warned,) = [line for line in lines if "my own line" in line]
    assert re.fullmatch(r"WARNING Trainer: .*program\.py:\d+: UserWarning: my own line", warned)
    assert lines[lines.index("WARNING Trainer: two") + 1] == "    lines"
    assert lines[lines.index("ERROR   Trainer: it breaks off:") + 1] == (
        "    Traceback (most recent call last):"
    )
    assert "    ValueError: no such column" in lines


def test_dumps_and_long_lines_are_cut_and_say_how_much(logs: tuple[list[str], str]) -> None:
    lines, _ = logs
    assert f"INFO    Trainer: a message ... (1 more line in {DEBUG_LOG})" in lines
    cut = f"{'x' * LINE_LIMIT} ... ({1000 - LINE_LIMIT} more characters in {DEBUG_LOG})"
    assert f"INFO    Trainer: {cut}" in lines


def test_the_debug_log_has_everything_whole(logs: tuple[list[str], str]) -> None:
    lines, debug = logs
    for text in (
        "Running launcher for node_info {\n  id: Trainer\n}",
        "Cleaning up stateless execution info.",
        "Got\nseveral lines",
        "No snappy.",
        "Bad row:\ndump",
        "FutureWarning: Not for long.",
        "a message\nand its dump",
        "x" * 1000,
        "\nbytes\n",
        "\nwhat C++ prints\n",
        "ValueError: no such column",
    ):
        assert text in debug, text
    for text in ("node_info", "stateless", "several", "snappy", "Not for long", "bytes", "C++"):
        assert not any(text in line for line in lines), text


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/venv/lib/python3.10/site-packages/tfx/types/a.py", "tfx/types/a.py"),
        ("/usr/lib/python3/dist-packages/six.py", "six.py"),
        (socket.__file__, "python/socket.py"),
        (str(REPOSITORY / "tfx_tpu_trainer" / "_support" / "waiting.py"), None),
        ("/mine/model.py", None),
        ("<string>", None),
    ],
)
def test_who_logs_is_told_by_the_place_of_the_source(path: str, package: str | None) -> None:
    assert package_of(path) == package

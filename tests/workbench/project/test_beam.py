"""Tests Beam arguments: a missing one is reported when the config is read."""

import contextlib
import http.server
import json
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import FlinkRunnerOptions
from apache_beam.runners.portability.local_job_service import LocalJobServicer
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from tests import bad_input
from tests.bad_input import row
from tests.conftest import REPOSITORY
from tests.free_ports import free_ports
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.project.beam import beam_problem, check_beam_arguments, job_problem
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline
from tfx_tpu_trainer.workbench.run import run_child

DOCS = REPOSITORY / "docs" / "beam.md"


def beam_listings() -> dict[str, list[str]]:
    """The Beam arguments of the page, by runner."""
    blocks = re.findall(r"```yaml\nbeam_args:\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    listed = [re.findall(r"^ +- (\S+)", block, re.MULTILINE) for block in blocks]
    return {words[0].removeprefix("--runner="): words for words in listed}


LISTINGS = beam_listings()


def _load(arguments: list[str], **values: str) -> Any:
    taxi = find_pipeline("taxi")
    return load_config(
        taxi.config_class(),
        taxi.config_file,
        values={"root": "gs://bucket/taxi", "data": "gs://bucket/data", **values},
        overrides=[f"beam_args={json.dumps(arguments)}"],
    )


def test_the_page_has_a_listing_for_each_runner() -> None:
    assert set(LISTINGS) == {"DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner"}


@pytest.mark.parametrize("runner", LISTINGS)
def test_the_listings_are_whole(runner: str) -> None:
    config = _load(LISTINGS[runner], user_code="import")
    assert list(config.beam_args) == LISTINGS[runner]


@pytest.mark.parametrize(
    ("runner", "option"),
    [
        bad_input.case(
            "config",
            f"`--runner={runner}` in `beam_args`, and no `{option}`",
            f"--runner={runner}",
            message,
            values=(runner, option),
        )
        for runner, option, message in (
            (
                "DataflowRunner",
                "--project",
                " needs --project; add it, such as --project=our-models",
            ),
            ("DataflowRunner", "--region", " needs --region; add it, such as --region=us-central1"),
            ("DataflowRunner", "--temp_location", " needs --temp_location; add it, such as --temp"),
            (
                "DataflowRunner",
                "--sdk_container_image",
                "would lack the pipeline's code; add --sdk",
            ),
            (
                "PortableRunner",
                "--job_endpoint",
                " needs --job_endpoint; add it, such as --job_end",
            ),
            ("SparkRunner", "--environment_type", "would lack the pipeline's code; add --sdk"),
            (
                "FlinkRunner",
                "--flink_master",
                " needs --flink_master; add it, such as --flink_mast",
            ),
            ("FlinkRunner", "--setup_file", "would lack the pipeline's code; add --sdk"),
            (
                "SparkRunner",
                "--spark_master_url",
                " needs --spark_master_url; add it, such as --sp",
            ),
        )
    ],
)
def test_an_option_that_is_left_out_is_named(runner: str, option: str, refused) -> None:
    words = [word for word in LISTINGS[runner] if not word.startswith(option)]
    assert len(words) < len(LISTINGS[runner])
    with refused(ConfigError):
        _load(words, user_code="import")


@pytest.mark.parametrize(
    "arguments",
    [
        bad_input.case("config", f"`beam_args={arguments}`", *says, values=(arguments,))
        for arguments, *says in (
            (
                ["--runner=DataflwRunner"],
                "--runner=DataflwRunner names an unknown runner; use one of DirectRunner, DataflowRunner",
            ),
            (["--runner", "DirectRunner"], "'DirectRunner' is not of the form --name=value"),
            (
                ["--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=/tmp/x"],
                "--temp_location=/tmp/x is out of reach of Dataflow's workers; use a gs://",
            ),
        )
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: list[str], refused) -> None:
    with refused(ConfigError):
        _load(arguments)


def test_code_that_tfx_packages_needs_no_image() -> None:
    arguments = ["--runner=PortableRunner", "--job_endpoint=localhost:1"]
    check_beam_arguments(arguments, code_is_imported=False)
    with pytest.raises(ValueError, match="sdk_container_image"):
        check_beam_arguments(arguments, code_is_imported=True)


def test_the_images_setup_file_packs_the_pipelines(tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "pipelines" / "taxi" / "transform").mkdir(parents=True)
    for path in sorted((REPOSITORY / "pipelines").glob("**/*")):
        if path.suffix in (".py", ".yaml"):
            target = app / path.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (app / "setup.py").write_bytes((REPOSITORY / "kubeflow" / "beam_setup.py").read_bytes())
    # Like Beam for a job with --setup_file.
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path / "dist")],
        cwd=app,
        check=True,
        capture_output=True,
    )
    (package,) = (tmp_path / "dist").iterdir()
    with tarfile.open(package) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert "pipelines/taxi/transform/preprocessing.py" in names
    assert "pipelines/taxi/config.yaml" in names


@pytest.mark.parametrize(
    ("python", "lock"), [("3.10", "image.lock"), ("3.12", "tfx-1.21/image.lock")]
)
def test_the_setup_file_asks_for_the_images_versions(python: str, lock: str) -> None:
    text = (REPOSITORY / "kubeflow" / "beam_setup.py").read_text(encoding="utf-8")
    locked = (REPOSITORY / "requirements" / lock).read_text(encoding="utf-8")
    every = [Requirement(line) for line in re.findall(r'"(.+==.+; .+)"', text)]
    wanted = [one for one in every if one.marker.evaluate({"python_version": python})]
    assert {one.name for one in wanted} == {"tfx", "apache-beam", "tensorflow"}
    for one in wanted:
        assert f"\n{one.name}{one.specifier} " in locked


# Beam services that are not there, or are others, are one line before anything runs.

POOL = ["--environment_type=EXTERNAL", "--environment_config=localhost:50000"]


def portable(address: str) -> list[str]:
    return ["--runner=PortableRunner", f"--job_endpoint={address}", *POOL]


def flink(address: str, *words: str) -> list[str]:
    return ["--runner=FlinkRunner", f"--flink_master={address}", *POOL, *words]


@contextlib.contextmanager
def json_server(answer: object) -> Iterator[str]:
    """A server that gives one answer to everything, as the JobManager's REST API gives its version."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"localhost:{server.server_address[1]}"
        finally:
            server.shutdown()


def local_run(arguments: list[str], root: str | Path = "not-made") -> Result:
    """Returns the local runner's message about Beam arguments."""
    words = [
        "--pipeline",
        "taxi",
        "--root",
        str(root),
        "--set",
        f"beam_args={json.dumps(arguments)}",
    ]
    return CliRunner().invoke(main, ["run", *words])


@row(
    "runners",
    "`beam_args` with a `--job_endpoint` where nothing listens",
    "error: beam_args: no job server answers at --job_endpoint=localhost:",
    "(Connection refused): start Beam's job server there, or correct the address",
)
def test_a_job_server_that_is_not_there_is_told_before_the_run(tmp_path: Path, refused) -> None:
    (address,) = free_ports(1)
    refused.output(local_run(portable(address), tmp_path / "root"))
    assert not (tmp_path / "root").exists()


@row(
    "runners",
    "`beam_args` with a `--job_endpoint` at which something else answers",
    "the server at --job_endpoint=localhost:",
    "is not a job server of Beam (",
    "give the address of its --job-port",
)
def test_what_is_no_job_server_is_told(refused) -> None:
    with json_server({}) as address:
        refused.output(local_run(portable(address)))


def test_a_job_server_that_is_there_takes_jobs(tmp_path: Path) -> None:
    # What Beam's program of a job server runs.
    server = LocalJobServicer(str(tmp_path))
    port = server.start_grpc_server()
    try:
        assert beam_problem(portable(f"localhost:{port}")) is None
    finally:
        server.stop()


@row(
    "runners",
    "`beam_args` with a `--flink_master` where nothing listens",
    "no Flink answers at --flink_master=localhost:",
    "(Connection refused): start the cluster, or give the address of its JobManager's REST API",
)
def test_a_flink_that_is_not_there_is_told(refused) -> None:
    (address,) = free_ports(1)
    refused.output(local_run(flink(address)))


@row(
    "runners",
    "`beam_args` with a `--flink_master` at which something else answers",
    "the server at --flink_master=localhost:",
    "is not Flink: give the address of the JobManager's REST API",
)
def test_what_is_no_flink_is_told(refused) -> None:
    with json_server({}) as address:
        refused.output(local_run(flink(address)))


@row(
    "runners",
    "`beam_args` with a `--flink_master` of a version that Beam has no job server for",
    "is 1.9.3, and this Beam has job servers for 1.",
    "run a cluster of one of these",
)
def test_a_flink_of_a_version_that_beam_does_not_know_is_told(refused) -> None:
    with json_server({"flink-version": "1.9.3"}) as address:
        refused.output(local_run(flink(address)))


@row(
    "runners",
    "`beam_args` with a `--flink_master` of another version than `--flink_version`",
    "and Beam would start its job server for ",
    "add --flink_version=",
)
def test_a_flink_of_another_version_than_the_job_servers_is_told(refused) -> None:
    oldest = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS[0]
    with json_server({"flink-version": f"{oldest}.2"}) as address:
        refused.output(local_run(flink(address)))
        assert beam_problem(flink(address, f"--flink_version={oldest}")) is None


def test_runners_without_such_services_are_not_asked() -> None:
    for runner in ("DirectRunner", "DataflowRunner", "SparkRunner"):
        assert beam_problem([f"--runner={runner}"]) is None
    assert beam_problem([]) is None
    assert beam_problem(flink("[local]")) is None


@pytest.mark.parametrize(
    "reason",
    [
        "io.grpc.StatusRuntimeException: UNAVAILABLE: io exception",
        "java.net.ConnectException: Connection refused",
        "java.io.IOException: Connection reset by peer",
    ],
)
def test_a_job_that_failed_for_want_of_a_connection_names_both_ends(reason) -> None:
    message = f"failed in state FAILED: {reason}"
    assert job_problem(portable("localhost:1"), message) == (
        "the job server at --job_endpoint=localhost:1 reached no cluster at its --flink-master, or a "
        "host of the job reached no worker pool at --environment_config=localhost:50000: start what "
        "is missing (docs/beam.md)"
    )
    containers = [
        "--runner=PortableRunner",
        "--job_endpoint=localhost:1",
        "--sdk_container_image=i",
    ]
    assert "worker pool" not in (job_problem(containers, message) or "worker pool")
    assert job_problem(["--runner=DirectRunner"], message) is None
    assert job_problem(portable("localhost:1"), "failed in state FAILED: KeyError: 'fare'") is None


@pytest.fixture
def handlers_kept() -> Iterator[None]:
    """Restores the handlers of signals: a run leaves those that stop it ignored, even in processes that start later."""
    before = {number: signal.getsignal(number) for number in (*run_child.SIGNALS, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers_kept")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (portable("localhost:1"), "no job server answers at --job_endpoint=localhost:1"),
        ([], "RuntimeError: the job"),
    ],
)
def test_a_run_that_failed_says_what_has_gone_meanwhile(tmp_path, arguments, says) -> None:
    definition = find_pipeline("taxi")
    values = {"root": str(tmp_path), "beam_args": arguments}
    config = load_config(definition.config_class(), definition.config_file, values=values)

    def fails(config: object) -> str:
        raise RuntimeError("the job")

    failing = SimpleNamespace(prepare_data=fails)
    report = run_child.run_pipeline(failing, config, tmp_path)
    assert report.failure is not None
    assert report.failure.message.startswith(says)
    assert report.failure.message.endswith("RuntimeError: the job")

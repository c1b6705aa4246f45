"""Checks a config's Beam arguments when it is read, and their services before a run and after a failure.

Beam itself reports a missing service late: when the first job starts, in a pod, or after a minute as
"FutureTimeoutError". It ignores unknown options.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from tfx_tpu_trainer._support.waiting import connection_error

# Runner -> required options, each with an example.
_NEEDED: Mapping[str, Mapping[str, str]] = {
    "direct": {},
    "dataflow": {
        "project": "our-models-17",
        "region": "us-central1",
        "temp_location": "gs://bucket/beam",
    },
    "portable": {"job_endpoint": "localhost:8099"},
    "flink": {"flink_master": "flink-jobmanager:8081"},
    "spark": {"spark_master_url": "spark://spark-master:7077"},
}

# Environments of existing workers, with what they need.
_ENVIRONMENTS_WITH_CODE = ("EXTERNAL", "LOOPBACK", "PROCESS")

CONNECT_SECONDS = 5.0
# A job server only forwards the cause, so the two connections below look alike.
_NO_CONNECTION = re.compile(
    r"Connection refused|Connection reset|StatusRuntimeException: UNAVAILABLE|Network closed"
)

_DESCRIBE = "/org.apache.beam.model.job_management.v1.JobService/DescribePipelineOptions"


def beam_options(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the options in Beam arguments; a flag's value is "true"."""
    options: dict[str, str] = {}
    for argument in arguments:
        name, separator, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name:
            raise ValueError(f"the Beam argument {argument!r} is not of the form --name=value")
        options[name] = value if separator else "true"
    return options


def check_beam_arguments(arguments: Sequence[str], *, code_is_imported: bool) -> None:
    """Rejects Beam arguments that would fail late."""
    options = beam_options(arguments)
    runner = options.get("runner", "DirectRunner")
    kind = runner.lower().removesuffix("runner")
    if kind not in _NEEDED:
        names = ", ".join(f"{each.capitalize()}Runner" for each in _NEEDED)
        raise ValueError(
            f"the Beam argument --runner={runner} names an unknown runner; use one of {names}"
        )
    for name, example in _NEEDED[kind].items():
        if not options.get(name):
            raise ValueError(
                f"--runner={runner} needs --{name}; add it, such as --{name}={example}"
            )
    bucket = options.get("temp_location", "gs://")
    if kind == "dataflow" and not bucket.startswith("gs://"):
        raise ValueError(
            f"--temp_location={bucket} is out of reach of Dataflow's workers; use a gs:// path"
        )
    if kind != "direct" and code_is_imported and not _workers_have_code(options):
        raise ValueError(
            f"--runner={runner}: the workers would lack the pipeline's code; add "
            "--sdk_container_image with the pipeline's image, or --setup_file=/app/setup.py, "
            "which that image contains"
        )


def _workers_have_code(options: Mapping[str, str]) -> bool:
    return bool(
        options.get("sdk_container_image")
        or options.get("setup_file")
        or options.get("environment_type", "").upper() in _ENVIRONMENTS_WITH_CODE
    )


def beam_problem(arguments: Sequence[str]) -> str | None:
    """Describes why a job can't be submitted, as far as this machine can see."""
    options = beam_options(arguments)
    kind = options.get("runner", "DirectRunner").lower().removesuffix("runner")
    if kind not in ("portable", "flink"):
        return None
    if address := options.get("job_endpoint"):
        return _job_server_problem(address)
    master = options["flink_master"]
    if master.startswith("["):
        return None
    return _flink_problem(master, options.get("flink_version"))


def job_problem(arguments: Sequence[str], message: str) -> str | None:
    """Describes a job's failure if the job server had no cluster, or the cluster no workers.

    Neither can be contacted from here: their addresses, such as `localhost:50000`, are for other hosts.
    """
    options = beam_options(arguments)
    if "job_endpoint" not in options or not _NO_CONNECTION.search(message):
        return None
    pool = ""
    if options.get("environment_type", "").upper() == "EXTERNAL":
        pool = (
            ", or a host of the job reached no worker pool at "
            f"--environment_config={options.get('environment_config')}"
        )
    return (
        f"the job server at --job_endpoint={options['job_endpoint']} reached no cluster at its --flink-master{pool}: "
        "start what is missing (docs/beam.md)"
    )


def _job_server_problem(address: str) -> str | None:
    if reason := _not_answering(address):
        return (
            f"no job server answers at --job_endpoint={address} ({reason}): start Beam's job server there, or "
            "correct the address (docs/beam.md)"
        )
    # Imported late: most runs have no job server.
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_DESCRIBE)(b"", timeout=CONNECT_SECONDS)
        except grpc.RpcError as error:
            return (
                f"the server at --job_endpoint={address} is not a job server of Beam "
                f"({error.code().name}): give the address of its --job-port"
            )
    return None


def _flink_problem(master: str, asked: str | None) -> str | None:
    address = master if master.startswith(("http://", "https://")) else f"http://{master}"
    try:
        with urllib.request.urlopen(f"{address}/config", timeout=CONNECT_SECONDS) as answer:
            version = json.load(answer)["flink-version"]
    except urllib.error.URLError as error:
        return (
            f"no Flink answers at --flink_master={master} ({_reason(error.reason)}): start the cluster, or give "
            "the address of its JobManager's REST API, such as flink-jobmanager:8081"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return (
            f"the server at --flink_master={master} is not Flink: give the address of the "
            "JobManager's REST API, such as flink-jobmanager:8081"
        )
    # Imported late: it takes seconds, and most runs do not use Flink.
    from apache_beam.options.pipeline_options import FlinkRunnerOptions

    known = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    line = ".".join(version.split(".")[:2])
    if line not in known:
        return (
            f"the Flink at --flink_master={master} is {version}, and this Beam has job servers for {', '.join(known)}: "
            "run a cluster of one of these"
        )
    if line != (asked or known[-1]):
        return (
            f"the Flink at --flink_master={master} is {version}, and Beam would start its job server for "
            f"{asked or known[-1]}: add --flink_version={line}"
        )
    return None


def _not_answering(address: str) -> str | None:
    """Returns why a TCP connection to HOST:PORT fails; None if it succeeds."""
    try:
        error = connection_error(address, seconds=CONNECT_SECONDS)
    except ValueError as malformed:
        return str(malformed)
    return None if error is None else _reason(error)


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error)

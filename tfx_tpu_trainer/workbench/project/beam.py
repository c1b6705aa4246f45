"""Checks a config's Beam arguments when it is read, and their services before a run and after a failure.

Beam itself reports a missing service late: when the first job starts, in a pod, or after a minute as
"FutureTimeoutError". It ignores unknown options.
"""

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
    """Describes why a job can't be submitted: nothing listens where its server should."""
    options = beam_options(arguments)
    kind = options.get("runner", "DirectRunner").lower().removesuffix("runner")
    if kind not in ("portable", "flink"):
        return None
    name = "job_endpoint" if "job_endpoint" in options else "flink_master"
    given = options[name]
    # Beam starts a Flink of its own for `[local]` and `[auto]`.
    if given.startswith("["):
        return None
    address = given.rpartition("://")[2].rstrip("/")
    try:
        error = connection_error(address, seconds=CONNECT_SECONDS)
    except ValueError as malformed:
        error = malformed
    if error is None:
        return None
    what = "job server" if name == "job_endpoint" else "Flink"
    reason = getattr(error, "strerror", None) or error
    return f"no {what} answers at --{name}={given} ({reason}): start it there, or correct the address (docs/beam.md)"

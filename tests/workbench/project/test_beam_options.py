"""Beam arguments: what is missing is told when the config is read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests import bad_input
from tests.conftest import REPOSITORY
from tfx_tpu_trainer.workbench.project.beam_options import check_beam_arguments
from tfx_tpu_trainer.workbench.project.config import ConfigError, load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline

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
    # As Beam does where a job has --setup_file.
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

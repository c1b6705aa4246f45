"""What is refused without asking anybody."""

from __future__ import annotations

import pytest

from tests.bad_input import case
from tfx_tpu_trainer.components.clusters._checks import (
    JobError,
    check_bucket_paths,
    check_host,
    check_image,
    check_project,
)


@pytest.mark.parametrize(
    "image",
    [
        "p:1",
        "r/p:1",
        "europe-docker.pkg.dev/a/b/p:2026-11.1_x",
        "localhost:5000/p:1",
        f"r/p@sha256:{'0' * 64}",
    ],
)
def test_images_with_a_tag_or_a_digest_will_do(image):
    check_image(image)


@pytest.mark.parametrize(
    "image",
    [
        case("runners", f"`--image {image!r}`", *says, values=image)
        for image, *says in (
            ("", "image is empty; name the container image with tfx_tpu_trainer"),
            ("r/p", "image='r/p' has no tag", "add one, as in 'r/p:1'"),
            (
                "localhost:5000/p",
                "image='localhost:5000/p' has no tag",
                "add one, as in 'localhost:50",
            ),
            (
                "r/p@sha256:12",
                "image='r/p@sha256:12' is not the name of a container image; give one",
            ),
            ("a b:1", "image='a b:1' is not the name of a container image; give one with a tag"),
        )
    ],
)
def test_other_images_are_refused(image, refused):
    with refused(JobError):
        check_image(image)


def test_paths_are_in_buckets():
    check_bucket_paths({"root": "gs://a/b", "data": "s3://c"})


@pytest.mark.parametrize(
    ("setting", "path", "schemes"),
    [
        case(
            "runners",
            f"`--{setting} {path!r}`" + (" on Vertex AI" if schemes else ""),
            f"{setting}={path!r} is not a path in a bucket",
            f"give one that starts with {'gs:// and' if schemes else 'gs:// or s3:// and'}",
            values=(setting, path, schemes),
        )
        for setting, path, schemes in (
            ("root", "/tmp/a", ()),
            ("root", "runs/a", ()),
            ("root", "gs://", ()),
            ("root", "gs:///a", ()),
            ("root", "file:/a", ()),
            ("root", "gs://a\nb", ()),
            ("data", "s3://c", ("gs",)),
        )
    ],
)
def test_other_paths_are_refused(setting, path, schemes, refused):
    with refused(JobError):
        check_bucket_paths({setting: path}, schemes=schemes)


def test_projects_and_regions_have_a_form():
    for project in ("our-models", "1234", "example.com:our-models"):
        check_project(project, "europe-west4")


@pytest.mark.parametrize(
    ("project", "region"),
    [
        case(
            "runners",
            f"`--project {project!r} --region {region!r}`",
            *says,
            values=(project, region),
        )
        for project, region, *says in (
            ("", "us-central1", "project='' is not the id of a Google Cloud project; give its id"),
            (
                "Our",
                "us-central1",
                "project='Our' is not the id of a Google Cloud project; give its id",
            ),
            (
                "our-models",
                "",
                "region='' is not the name of a region; give one such as 'us-central1'",
            ),
            (
                "our-models",
                "us-central1-a",
                "region='us-central1-a' is not the name",
                "not a zone like",
            ),
        )
    ],
)
def test_other_projects_and_regions_are_refused(project, region, refused):
    with refused(JobError):
        check_project(project, region)


@pytest.mark.parametrize(
    "host", ["http://localhost:8080/", "https://[::1]:443", "https://a.example/kfp"]
)
def test_addresses_of_apis_will_do(host):
    check_host(host, token="eyJhbGciOi.eyJ-_=+/")


@pytest.mark.parametrize(
    "host",
    [
        case(
            "runners",
            f"`--host {host!r}`",
            f"host={host!r} is not the address of an API; give one",
            values=host,
        )
        for host in (
            "localhost:8080",
            "h",
            "ftp://h",
            "http://",
            "http://h:99999",
            "http://[h",
            "http://a b",
        )
    ],
)
def test_other_addresses_are_refused(host, refused):
    with refused(JobError):
        check_host(host)


@pytest.mark.parametrize(
    "token",
    [
        case(
            "runners",
            f"`--token` with {given}",
            "token has spaces, line ends or letters that no bearer token has (it is not shown here); copy it",
            values=token,
        )
        for given, token in (("a line end", "eyJhbG\n"), ("a letter beyond ASCII", "eyJhbGé"))
    ],
)
def test_a_token_that_cannot_be_is_refused_and_not_shown(token, refused):
    with refused(JobError) as raised:
        check_host("http://localhost:8080", token)
    assert "eyJ" not in str(raised.value)

"""What is refused without asking anybody."""

from __future__ import annotations

import pytest

from tfx_tpu_trainer.orchestration.checks import (
    JobError,
    check_bucket_paths,
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
    ("image", "says"),
    [
        ("", "image is empty; name the container image"),
        ("r/p", "image='r/p' has no tag.*'r/p:1'"),
        ("localhost:5000/p", "has no tag"),
        ("r/p@sha256:12", "has no tag"),
        ("r/p:1 ", "has no tag"),
    ],
)
def test_other_images_are_refused(image, says):
    with pytest.raises(JobError, match=says):
        check_image(image)


def test_paths_are_in_buckets():
    check_bucket_paths({"root": "gs://a/b", "data": "s3://c"})
    for path in ("/tmp/a", "runs/a", "gs://", "gs:///a", "file:/a"):
        with pytest.raises(JobError, match=r"root='.*' is no path in a bucket.*gs:// or s3://"):
            check_bucket_paths({"root": path})
    with pytest.raises(JobError, match=r"data='s3://c' is no path in a bucket.*starts with gs://"):
        check_bucket_paths({"data": "s3://c"}, schemes=("gs",))


def test_projects_and_regions_have_a_form():
    for project in ("our-models", "1234", "example.com:our-models"):
        check_project(project, "europe-west4")
    for project, region, says in (
        ("", "us-central1", "project=''"),
        ("Our", "us-central1", "project='Our'"),
        ("our-models", "", "region=''"),
        ("our-models", "us-central1-a", "a zone like"),
    ):
        with pytest.raises(JobError, match=says):
            check_project(project, region)

"""Checks the Markdown files' links as a reader of the repository follows them; `make docs` checks the site's."""

import collections
import functools
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "docs",
    "kubeflow",
    "pipelines",
    "requirements",
    "benchmarks",
    "tests",
    "tfx_tpu_trainer",
)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *ROOT.glob("*.md"),
        *(each for name in FOLDERS for each in (ROOT / name).rglob("*.md")),
    )
    # Templates are pages of other repositories.
    if "templates" not in path.parts
)
_CODE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1\s*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(
    r"\]\(<?(?P<inline>[^)\s>]+)|^\[[^\]]+\]: *(?P<defined>\S+)|<(?:a|img)\b[^>]*(?:href|src)=\"(?P<html>[^\"]+)",
    re.MULTILINE,
)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//")


@functools.cache
def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _links(page: str) -> list[str]:
    found = [each[each.lastgroup] for each in _LINK.finditer(_CODE.sub("", _text(page)))]
    return [target for target in found if not _ELSEWHERE.match(target)]


@functools.cache
def _anchors(page: str) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page, and those that it writes itself."""
    outside = re.sub(r"^(`{3,}|~{3,}).*?^\1\s*$", "", _text(page), flags=re.DOTALL | re.MULTILINE)
    seen: collections.Counter[str] = collections.Counter()
    anchors = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", outside))
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", outside, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(anchors)


def _fault(page: str, target: str) -> str | None:
    path, _, anchor = target.partition("#")
    file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    if path.startswith("/") or file.startswith("..") or not (ROOT / file).exists():
        return f"{target}: the repository has no such file"
    if anchor and file.endswith(".md") and anchor not in _anchors(file):
        return f"{target}: {file} has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files_and_headings_of_the_repository(page):
    assert [fault for target in _links(page) if (fault := _fault(page, target))] == []


def test_links_of_each_kind_are_looked_at():
    kinds = {each.lastgroup for page in PAGES for each in _LINK.finditer(_text(page))}
    assert kinds == {"inline", "defined", "html"}
    assert sum(len(_links(page)) for page in PAGES) > 500

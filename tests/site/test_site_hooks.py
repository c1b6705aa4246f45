"""Tests our additions to MkDocs, the links of the Markdown files in the repository, and builds the site."""

import collections
import functools
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import griffe
import pytest

from scripts import draw_pictures, site_hooks
from scripts.terminal import picture


@pytest.mark.parametrize(
    ("page", "link", "becomes"),
    [
        ("how-to/bert.md", "[doctor](../doctor.md#fix)", "[doctor](../doctor.md#fix)"),
        ("serving.md", "[7](../kubeflow/README.md#7-serve-it)", "[7](kubeflow.md#7-serve-it)"),
        ("start/index.md", "[log](../../CHANGELOG.md)", "[log](../changelog.md)"),
        ("kubeflow.md", "[lines](../docs/lines.md)", "[lines](lines.md)"),
        ("run-page.md", "[it](notebooks/pipeline.ipynb)", "[it](notebooks/pipeline.md)"),
        ("notebooks/a.md", "[b](pipeline.ipynb#train)", "[b](pipeline.md#train)"),
        ("contributing.md", "[map](docs/architecture.md)", "[map](architecture.md)"),
        ("beam.md", "[image](../kubeflow/Dockerfile)", "image (`kubeflow/Dockerfile`)"),
        ("beam.md", "[`a`](../kubeflow/Dockerfile)", "`a`"),
        ("tpu.md", "[elsewhere](https://example.com/a)", "[elsewhere](https://example.com/a)"),
        ("tpu.md", "![picture](images/demo.svg)", "![picture](images/demo.svg)"),
    ],
)
def test_links_lead_to_the_page_that_shows_a_file(page, link, becomes):
    missing: list[str] = []
    assert site_hooks.with_site_links(f"see {link}.", page, missing) == f"see {becomes}."
    assert missing == []


def test_a_link_by_a_label_is_one_too():
    missing: list[str] = []
    text = "see [`a`][t1] and [b][t2], [c][t3].\n\n[t1]: ../kubeflow/Dockerfile\n[t2]: tpu.md\n"
    shown = site_hooks.with_site_links(text, "beam.md", missing)
    assert shown.startswith("see `a` and [b](tpu.md), [c][t3].\n")
    assert missing == []


@pytest.mark.parametrize("target", ["../tests/test_gone.py", "kubeflow.md#7-serve-it"])
def test_a_link_to_a_file_that_the_repository_does_not_have_is_told(target):
    """A page that only the site has is one of those."""
    missing: list[str] = []
    site_hooks.with_site_links(f"[it]({target})", "tpu.md", missing)
    assert missing == [target]


def test_code_is_left_as_it_is():
    text = "```md\n[it](../tests/test_gone.py)\n```\n"
    missing: list[str] = []
    assert site_hooks.with_site_links(text, "tpu.md", missing) == text
    assert missing == []


@pytest.fixture
def package(tmp_path):
    """A package with a name that has a docstring, an alias and a file of the same name as its function."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        'from shop.sell import sell\n\n\ndef buy():\n    """Buys."""\n\n\n__all__ = ["buy", "sell"]\n'
    )
    (folder / "sell.py").write_text('def sell():\n    """Sells."""\n')
    (folder / "back_room.py").write_text("def hide(): ...\n")
    return griffe.load("shop", search_paths=[str(tmp_path)])


def test_a_name_that_no_page_documents_is_told(package):
    documented = {"shop", "shop.buy", "shop.sell.sell"}
    assert list(site_hooks.undocumented(package, documented)) == []
    (fault,) = site_hooks.undocumented(package, documented - {"shop.buy"})
    assert fault.startswith("shop.buy: no page documents it")
    (fault,) = site_hooks.undocumented(package, documented - {"shop.sell.sell"})
    assert fault.startswith("shop.sell: no page documents it")
    (fault,) = site_hooks.undocumented(package, set())
    assert fault == "shop: no page of docs/reference/api has '::: shop'"


def test_a_class_has_one_page_and_its_modules_link_to_it(tmp_path):
    folder = tmp_path / "shop"
    (folder / "till").mkdir(parents=True)
    (folder / "__init__.py").write_text('from shop.till import Till\n\n__all__ = ["Till"]\n')
    (folder / "till" / "__init__.py").write_text(
        'class Till:\n    """Takes money.\n\n    And gives change.\n    """\n\n\n'
        'def pay():\n    """Pays."""\n\n\n__all__ = ["Till", "pay"]\n'
    )
    shop = griffe.load("shop", search_paths=[str(tmp_path)])
    assert site_hooks.class_pages(shop) == {"reference/api/till/Till.md": "shop.till.Till"}
    for module, members in (("shop", ""), ("shop.till", "pay")):
        text = site_hooks.with_class_list(f"# Shop\n\n::: {module}\n", shop)
        assert "- [Till](till/Till.md): Takes money.\n" in text
        assert text.endswith(f"::: {module}\n    options:\n      members: [{members}]\n")
    documented = {"shop", "shop.till", "shop.till.Till", "shop.till.pay"}
    assert list(site_hooks.undocumented(shop, documented)) == []


def test_an_inventory_tells_its_names():
    lines = "shop.buy py:function 1 api.html#$ -\nshop.sell py:function 1 api.html#$ -\n"
    inventory = b"# Sphinx inventory version 2\n# zlib.\n" + zlib.compress(lines.encode())
    assert site_hooks.inventory_names(inventory) == {"shop.buy", "shop.sell"}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://host.example/it.js"></script>',
        "<script async src=//host.example/it.js></script>",
        '<link rel="stylesheet" href="https://host.example/it.css">',
        '<link href="https://host.example/it.woff" rel="preconnect">',
        '<img alt="it" src="http://host.example/it.png">',
        '@import url("https://host.example/it.css");',
    ],
)
def test_what_a_page_loads_from_elsewhere_is_told(text):
    (url,) = site_hooks.external_loads(f"<p>{text}</p>")
    assert "host.example/it" in url


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://host.example/it.html">it</a>',
        '<script src="assets/it.js"></script>',
        '<link rel="canonical" href="https://host.example/it.html">',
        '<img src="images/it.png">',
    ],
)
def test_what_a_reader_clicks_or_the_site_has_is_fine(text):
    assert list(site_hooks.external_loads(text)) == []


def test_an_option_without_a_default_shows_none():
    html = "<td><code>Sentinel.UNSET</code></td><td><code>3</code></td>"
    shown = site_hooks.on_page_content(html, page=None, config=None, files=None)
    assert shown == "<td></td><td><code>3</code></td>"


def test_the_search_puts_pages_that_explain_before_those_that_list_names():
    boosts = [site_hooks.boost_of(p) for p in ("explanation/resume.md", "lines.md", "bad-input.md")]
    assert boosts == sorted(boosts, reverse=True)
    assert len(set(boosts)) == 3


def test_examples_of_docstrings_are_found_by_their_place(tmp_path):
    (tmp_path / "shop.py").write_text(
        'class Shop:\n    """Sells.\n\n    >>> 1\n    """\n\n    def buy(self):\n        """Buys."""\n\n\n'
        'Other = Shop\n"""The same.\n\n>>> 2\n"""\n'
    )
    assert site_hooks.examples(tmp_path) == {
        "shop.py:Shop": "Sells.\n\n>>> 1",
        "shop.py:Other": "The same.\n\n>>> 2",
    }


def test_the_chart_of_speed_is_drawn_from_its_table():
    measured = draw_pictures.ratios(
        "| MLP | ours / real, train steps/s >= 2 | 2.5 (2.4-2.6) | reached |\n"
        "| MLP | ours / real, predict examples/s >= 2 | 9.9 | reached |\n"
        "| MLP | ours / keras3-loop, train steps/s >= 1 | 9.9 | reached |\n"
        "| CNN | ours / keras3, train steps/s >= 1 | 0.5 | missed |\n"
    )
    assert measured == {"MLP": {"real": 2.5}, "CNN": {"keras3": 0.5}}
    drawn = draw_pictures.speed_picture(measured)
    assert "2.50 x" in drawn
    assert drawn.count('class="slower"') == 1
    page = draw_pictures.SPEED_PAGE.read_text(encoding="utf-8")
    on_disk = draw_pictures.SPEED_PICTURE.read_text(encoding="utf-8")
    assert draw_pictures.speed_picture(draw_pictures.ratios(page)) == on_disk, "call `make docs`"


def test_a_terminal_s_picture_has_its_text_and_loads_nothing():
    drawn = picture("\x1b[32mblessed\x1b[0m", title="make demo")
    assert "blessed" in drawn
    assert "make demo" in drawn.replace("&#160;", " ")
    assert "url(" not in drawn.replace("url(#", "")


# 35 s of processor time: `make docs` does it too.
@pytest.mark.sweep
def test_the_site_is_built_strictly(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")],
        cwd=site_hooks.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    said = r"(\d+) pages, (\d+) public names documented, (\d+) docstrings with an example"
    pages, names, examples = map(int, re.search(said, built.stderr).groups())
    assert pages >= 90
    assert names >= 710
    assert examples >= 59
    index = (tmp_path / "site" / "search" / "search_index.js").read_text(encoding="utf-8")
    # Search without a server: the index is a script, and reaches into the API.
    assert index.startswith("var __index = ")
    assert "EvalMetricsGate" in index


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

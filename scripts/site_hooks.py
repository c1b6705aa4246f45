"""Extends MkDocs for `make docs`: pages from outside docs/, links into the repository, and checks of the result.

MkDocs' strict mode finds broken links and anchors, pages that no section names and sections without their page. Added
here: a link to a file of the repository must name one that exists, every public name must be documented, and no page
may load a script, a style sheet, a font or a picture from another host. Notebooks become pages, with their outputs.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.run_notebooks import page_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tfx_tpu_trainer"
API = PurePosixPath("reference/api")
PROMPT = ">>> "
# Strict mode counts warnings of loggers below this name.
LOG = logging.getLogger("mkdocs.hooks.site")

# Page of the site -> file of the repository.
PAGES_FROM_ELSEWHERE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "kubeflow.md": "kubeflow/README.md",
}

# Pages that name everything once; a search should find the page that explains a name.
RECORDS = frozenset({"bad-input.md", "behaviours.md", "changelog.md", "contributing.md"})

# Modules with private names, or whose `__all__` is re-exported by a module with a page.
SHOWN_ELSEWHERE = frozenset(
    f"tfx_tpu_trainer.{name}"
    for name in (
        "compat.contrib.tf_private",
        "estimator.canned",
        "estimator.heads",
        "estimator.hooks",
        "estimator.keras",
        "estimator.schedule",
        "workbench.notebook.tfx_private",
        "workbench.project",
    )
)

_FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_REFERENCE = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\[(?P<label>[^\]]+)\]")
_DEFINITION = re.compile(r"^\[(?P<label>[^\]]+)\]: (?P<target>\S+)$", re.MULTILINE)
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|icon|preload|preconnect))[^>]*?\bhref=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|@import\s+[\"']?(?:url\()?[\"']?((?:https?:)?//[^\"')]+)",
    re.IGNORECASE,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages for files outside docs/, and for notebooks."""
    for page, source in PAGES_FROM_ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for page, path in class_pages(_package()).items():
        name = path.rpartition(".")[2]
        content = f"---\ntitle: {name}\n---\n\n::: {path}\n    options:\n      heading_level: 1\n"
        files.append(File.generated(config, page, content=content))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        content = page_of(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirects links that leave docs/ to the site's page of the file, or names the file."""
    # Searches for a signature's words hit dozens of docstrings; the page that explains them must come first.
    page.meta.setdefault("search", {"boost": boost_of(page.file.src_uri)})
    missing: list[str] = []
    text = with_site_links(markdown, page.file.src_uri, missing)
    if PurePosixPath(page.file.src_uri).parent == API:
        text = with_class_list(text, _package())
    for target in missing:
        LOG.warning(
            "%s links to '%s', which the repository does not have", page.file.src_uri, target
        )
    return text


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Removes the defaults of options without one, which mkdocs-click shows as an object of click 8.3."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


def on_post_build(config: MkDocsConfig) -> None:
    """Checks the built site."""
    site = Path(config.site_dir)
    package = _package()
    faults = [
        *undocumented(package, inventory_names((site / "objects.inv").read_bytes())),
        *loads_from_elsewhere(site),
    ]
    if faults:
        raise PluginError("\n".join([f"{len(faults)} faults of the site:", *faults]))
    pages = len(list(site.rglob("*.html")))
    names = sum(len(exports) for exports in public_names(package).values())
    LOG.info(
        "%d pages, %d public names documented, %d docstrings with an example",
        pages,
        names,
        len(examples()),
    )


def boost_of(page: str) -> float:
    """Returns the factor for a page's search score."""
    if page.startswith("reference/api/") or page in RECORDS:
        return 0.05
    if page.startswith(("start/", "how-to/")):
        return 3.0
    return 2.0 if page.startswith("explanation/") else 1.0


def with_site_links(markdown: str, page: str, missing: list[str]) -> str:
    """Rewrites a page's links that leave docs/; code blocks stay."""
    source = PAGES_FROM_ELSEWHERE.get(page, f"docs/{page}")
    defined = {each["label"]: each["target"] for each in _DEFINITION.finditer(markdown)}

    def in_line(link: re.Match[str]) -> str:
        target = defined.get(link["label"])
        return link[0] if target is None else f"[{link['text']}]({target})"

    def rewritten(link: re.Match[str]) -> str:
        path, _, anchor = link["target"].partition("#")
        if not path or "://" in path or path.startswith(("mailto:", "/")):
            return link[0]
        target = os.path.normpath(PurePosixPath(source).parent / path)
        # A link to a page that only the site has would be dead on GitHub. MkDocs itself checks other files of docs/.
        checked = target.endswith((".md", ".ipynb")) or not target.startswith("docs/")
        if checked and not (ROOT / target).exists():
            missing.append(link["target"])
        shown = {file: name for name, file in PAGES_FROM_ELSEWHERE.items()}.get(target)
        if shown is None and target.startswith("docs/"):
            shown = re.sub(r"\.ipynb$", ".md", target.removeprefix("docs/"))
        if shown is not None:
            to = os.path.relpath(shown, PurePosixPath(page).parent)
            return f"[{link['text']}]({to}{'#' if anchor else ''}{anchor})"
        return link["text"] if "`" in link["text"] else f"{link['text']} (`{target}`)"

    def with_links(text: str) -> str:
        return _LINK.sub(rewritten, _REFERENCE.sub(in_line, text))

    parts, at = [], 0
    for block in _FENCED.finditer(markdown):
        parts += [with_links(markdown[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, with_links(markdown[at:])])


def inventory_names(inventory: bytes) -> set[str]:
    """Returns the names in a Sphinx inventory (`objects.inv`, version 2)."""
    _, compressed = inventory.split(b"zlib.\n", 1)
    return {line.split(" ", 1)[0] for line in zlib.decompress(compressed).decode().splitlines()}


def public_names(package: griffe.Module) -> dict[str, list[str]]:
    """Returns module -> the names in its `__all__`, for the public modules of a package."""
    found: dict[str, list[str]] = {}

    def walk(module: griffe.Module) -> None:
        is_private = any(part.startswith("_") for part in module.path.split("."))
        if module.exports and not is_private and module.path not in SHOWN_ELSEWHERE:
            found[module.path] = [str(getattr(name, "name", name)) for name in module.exports]
        for each in module.modules.values():
            if not each.is_alias:
                walk(each)

    walk(package)
    return found


def class_pages(package: griffe.Module) -> dict[str, str]:
    """Returns page -> the class that it documents, such as `reference/api/components/TpuTrainer.md`."""
    return {_class_page(path): path for path in _homes(package).values()}


def _homes(package: griffe.Module) -> dict[str, str]:
    """Returns the place where each public class is defined -> its name in the module whose page it has."""
    homes: dict[str, str] = {}
    # The package itself repeats names of its faces.
    modules = sorted(public_names(package).items(), key=lambda each: each[0] == package.path)
    for module, names in modules:
        for name in names:
            if (found := _class(_module(package, module), name)) is not None:
                homes.setdefault(found.path, f"{module}.{name}")
    return homes


def _class_page(path: str) -> str:
    _, *below, name = path.split(".")
    return f"{API}/{'.'.join(below)}/{name}.md"


def _class(module: griffe.Module, name: str) -> griffe.Class | None:
    """Returns the class of this package that a module exports under a name, if it is one."""
    member = module.members.get(name)
    with contextlib.suppress(griffe.AliasResolutionError):
        member = member.final_target if isinstance(member, griffe.Alias) else member
    return member if isinstance(member, griffe.Class) else None


def with_class_list(markdown: str, package: griffe.Module) -> str:
    """Returns a page of modules with links to the pages of their classes in place of the classes."""
    homes, public = _homes(package), public_names(package)

    def with_links(directive: re.Match[str]) -> str:
        path = directive["path"]
        if path not in public:
            return directive[0]
        module = _module(package, path)
        rows, others = [], []
        for name in public[path]:
            if (found := _class(module, name)) is not None:
                page = PurePosixPath(_class_page(homes[found.path])).relative_to(API)
                text = found.docstring.value.split("\n\n")[0] if found.docstring else ""
                rows.append(f"- [{name}]({page}): {' '.join(text.split())}")
            elif not isinstance(module.members.get(name), griffe.Module):
                others.append(name)
        if not rows:
            return directive[0]
        members = f"    options:\n      members: [{', '.join(others)}]"
        return "\n".join([f"Classes of `{path}`:", "", *rows, "", directive[0], members])

    return re.sub(r"^::: (?P<path>\S+)$", with_links, markdown, flags=re.MULTILINE)


@functools.cache
def _package() -> griffe.Module:
    package = griffe.load(PACKAGE.name, search_paths=[str(ROOT)])
    assert isinstance(package, griffe.Module)
    return package


def undocumented(package: griffe.Module, documented: set[str]) -> Iterator[str]:
    """Yields a line for each public name that no page documents."""
    homes = _homes(package)
    for module, names in public_names(package).items():
        if module not in documented:
            yield f"{module}: no page of docs/reference/api has '::: {module}'"
            continue
        for name in names:
            found = _class(_module(package, module), name)
            if found is not None and homes[found.path] in documented:
                continue
            if not _places(_module(package, module), name) & documented:
                yield f"{module}.{name}: no page documents it; does it have a docstring?"


def _module(package: griffe.Module, path: str) -> griffe.Module:
    below = path.removeprefix(package.path).removeprefix(".")
    return package[below] if below else package


def _places(module: griffe.Module, name: str) -> set[str]:
    """Returns where a module's name may be documented: under its own name, or in the file of the same name."""
    target = module.members.get(name)
    # TensorFlow's names can't be resolved.
    with contextlib.suppress(griffe.AliasResolutionError):
        target = target.final_target if isinstance(target, griffe.Alias) else target
    if isinstance(target, griffe.Module):
        # A module with an `__all__` has a page; a file may also share the name of its content.
        same = target.members.get(name)
        is_file_of_it = isinstance(same, griffe.Function | griffe.Class)
        return {f"{target.path}.{name}"} if is_file_of_it else {module.path}
    return {f"{module.path}.{name}"}


def loads_from_elsewhere(site: Path) -> Iterator[str]:
    """Yields a line for each script, style sheet, font or picture that a page loads from another host."""
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        for url in external_loads(path.read_text("utf-8")):
            yield f"{path.relative_to(site)}: loads {url}"


def external_loads(text: str) -> Iterable[str]:
    """Returns what a page or style sheet loads from another host, except links for readers."""
    return [next(filter(None, groups)) for groups in _LOADED.findall(text)]


def examples(package: Path = PACKAGE) -> dict[str, str]:
    """Returns each docstring that has an example, by its place, such as `estimator/_estimator.py:Estimator`."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text("utf-8")
        if PROMPT in source:
            for name, text in _docstrings(ast.parse(source)):
                if PROMPT in text:
                    found[f"{path.relative_to(package)}:{name}"] = text
    return found


def _docstrings(tree: ast.AST, within: str = "") -> Iterator[tuple[str, str]]:
    """Yields each class's, function's and assigned name's docstring, with names such as `Estimator.train`."""
    body = getattr(tree, "body", [])
    for node, following in zip(body, [*body[1:], None]):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield f"{within}{node.name}", ast.get_docstring(node) or ""
            yield from _docstrings(node, f"{within}{node.name}.")
        elif isinstance(node, ast.Assign) and isinstance(following, ast.Expr):
            # A name without its own docstring, such as a TensorFlow class, is followed by a string.
            text = getattr(following.value, "value", None)
            if isinstance(text, str):
                yield ast.unparse(node.targets[0]), inspect.cleandoc(text)


class DocumentAliases(griffe.Extension):
    """Documents public names that are aliases: `conv2d = convolution2d`, TensorFlow's hooks.

    Griffe reads source without running it, so it finds no docstring for a name that is assigned or comes from
    TensorFlow. Those of `__all__` get one here: a TensorFlow object's public name, or the docstring of our object.
    mkdocs.yml names this extension.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Documents every assigned name in a package's `__all__`."""
        if pkg.name == PACKAGE.name:
            for module in _modules_of(pkg):
                for export in module.exports or ():
                    _document(module, str(getattr(export, "name", export)))


def _modules_of(module: griffe.Module) -> list[griffe.Module]:
    below = [each for each in module.modules.values() if not each.is_alias]
    return [module, *(found for each in below for found in _modules_of(each))]


def _document(module: griffe.Module, name: str) -> None:
    member = module.members.get(name)
    if member is None or isinstance(member, griffe.Module | griffe.Class | griffe.Function):
        return
    if isinstance(member, griffe.Alias):
        try:
            member = member.final_target
        except griffe.AliasResolutionError:
            # TensorFlow's own name.
            member = griffe.Attribute(name, parent=module)
            module.set_member(name, member)
    if isinstance(member, griffe.Attribute) and member.docstring is None:
        text = described(getattr(importlib.import_module(module.path), name))
        if text:
            member.docstring = griffe.Docstring(text, parent=member)


def described(value: Any) -> str:
    """Describes an object under another name; nothing for a plain value."""
    if inspect.ismodule(value) or isinstance(value, str | int | dict | list | tuple):
        return ""
    home = getattr(value, "__module__", "") or ""
    if home.startswith(PACKAGE.name):
        return inspect.getdoc(value) or ""
    return f"TensorFlow's own `{tensorflow_name(value)}`."


def tensorflow_name(value: Any) -> str:
    """Returns TensorFlow's public name of an object, or its place in TensorFlow's source."""
    exported = getattr(value, "_tf_api_names_v1", None) or getattr(value, "_tf_api_names", None)
    if exported and "_tf_api_names_v1" in vars(value):
        name = f"tf.compat.v1.{exported[0]}"
    elif exported and "_tf_api_names" in vars(value):
        name = f"tf.{exported[0]}"
    else:
        name = f"{value.__module__}.{getattr(value, '__qualname__', value.__class__.__qualname__)}"
    return name

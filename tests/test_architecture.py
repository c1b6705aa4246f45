"""The walls of docs/architecture.md: layers, light imports, private names, and nothing of one machine in a file."""

import ast
import dataclasses
import functools
import io
import pathlib
import re
import subprocess
import sys
import tokenize
import warnings
from xml.etree import ElementTree

import pytest

from scripts import draw_pictures

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("tfx_tpu_trainer", "pipelines")

# Modules that hold the private names of TensorFlow, TFX and TFMA, each with its reason.
PRIVATE_NAME_MODULE = re.compile(r"_?(tf|tfx|tfma)_private(_\w+)?\.py")

# Folders and hosts that exist on one machine or for one installer. A test of paths may use /tmp and relative ones.
# Beam's container images all have their entry point in /opt/apache/beam.
PATH_OF_A_MACHINE = re.compile(r"(?<![\w.>}\])/])/(root|home|Users|work|opt(?!/apache/beam))/\w")
REGISTRY_HOST = re.compile(r"(pypi|pythonhosted|npmjs|debian)\.(org|com|net)\b")

# What makes a graph the default in its block.
GRAPH_BLOCK = re.compile(
    r".*\b(as_default|scope|init_scope|variable_scope|graph_mode)\(|[\w.]*\bSession\("
)

# Which files write without tfx_tpu_trainer/_support/whole_files.py, by which call, and why nobody sees half of the
# file.
_IN_A_RECORD = "in a record's own folder, read when its process has ended"
_IN_A_TEMPORARY_PLACE = "below a temporary name of whole_files.py"
_SETS_ASIDE = "gives another name to what is damaged"
_HAS_NO_NAME = "into a file without a name, which no other process opens"
OTHER_WRITERS = {
    "pipelines/digits/data.py": {"TFRecordWriter": _IN_A_TEMPORARY_PLACE},
    "tfx_tpu_trainer/workbench/run/local_runner.py": {"open": "a log that grows"},
    "tfx_tpu_trainer/workbench/project/roots.py": {"open": "the file of a lock"},
    "tfx_tpu_trainer/workbench/prove/environment.py": {
        "open": "the file of a lock, and a log that grows",
        "write_text": "last, and compared with the digest it should be",
    },
    "tfx_tpu_trainer/workbench/prove/proof.py": {"open": "a log that grows"},
    "tfx_tpu_trainer/workbench/prove/recorder.py": {"move": _IN_A_RECORD},
    "tfx_tpu_trainer/workbench/prove/records.py": dict.fromkeys(
        ("dump", "open", "savez"), _IN_A_RECORD
    ),
    "tfx_tpu_trainer/workbench/history/run_log.py": {"open": "a log that grows"},
    "tfx_tpu_trainer/components/trainer/artifacts.py": {"copy": _IN_A_TEMPORARY_PLACE},
    "tfx_tpu_trainer/components/trainer/early_stopping.py": {
        "copy": "into a new folder, which the learning curve names afterwards"
    },
    "tfx_tpu_trainer/components/trainer/resume.py": {"copy": _IN_A_TEMPORARY_PLACE},
    "tfx_tpu_trainer/estimator/_engine/checkpointing/input_position.py": {"rename": _SETS_ASIDE},
    "tfx_tpu_trainer/estimator/_engine/checkpointing/savers.py": {
        "GFile": "under a name that goes with a checkpoint's unfinished files",
        "rename": "puts that file in its place",
    },
    "tfx_tpu_trainer/estimator/export/_saved_model.py": {
        "copy": "into a version's temporary folder"
    },
    "tfx_tpu_trainer/estimator/keras/_saved_files.py": {
        "copy": _IN_A_TEMPORARY_PLACE,
    },
    "tfx_tpu_trainer/components/evaluation/_learning_curve.py": {"rename": _SETS_ASIDE},
    "tfx_tpu_trainer/components/evaluation/_model_evaluation.py": {
        "TFRecordWriter": _IN_A_TEMPORARY_PLACE
    },
    "tfx_tpu_trainer/components/inputs/_parsed_rows.py": {
        "fdopen": _HAS_NO_NAME,
        "TFRecordWriter": _HAS_NO_NAME,
    },
    "tfx_tpu_trainer/preflight/compiler/tpu_compiler.py": {
        "open": "in a temporary folder of two processes, before the file that the other looks for"
    },
    "tfx_tpu_trainer/_support/progress_views.py": {
        "open": "a temporary name beside its place",
        "dump": "a temporary name beside its place",
        "replace": "puts that file in its place, which a lost machine may forget: nobody waits for the disk",
    },
    "tfx_tpu_trainer/serving/_requests.py": {"TFRecordWriter": "where its callers say"},
    "tfx_tpu_trainer/serving/_server_config.py": {"GFile": _IN_A_TEMPORARY_PLACE},
    "tfx_tpu_trainer/workbench/cli/predict_run.py": {"GFile": _IN_A_TEMPORARY_PLACE},
    "tfx_tpu_trainer/workbench/new/csv_files.py": {"open": _IN_A_TEMPORARY_PLACE},
    "tfx_tpu_trainer/workbench/new/rendering.py": {
        "copyfile": "into the folder that appears whole"
    },
    "tfx_tpu_trainer/serving/_saved_model_file.py": {"copy": _IN_A_TEMPORARY_PLACE},
    "tfx_tpu_trainer/_support/terminal.py": {"open": "the null device"},
}

_WRITING_CALLS = {
    *("write_text", "write_bytes", "TFRecordWriter", "NamedTemporaryFile", "mkstemp"),
    *("copyfile", "copytree", "copyfileobj", "move", "symlink", "link"),
}
# Strings and dicts have some of these methods too.
_WRITING_CALLS_OF = {
    *(("os", name) for name in ("rename", "replace", "open")),
    *(("gfile", name) for name in ("rename", "copy")),
    *(("shutil", name) for name in ("copy", "copy2")),
    *((module, "dump") for module in ("json", "pickle", "yaml")),
    *(("np", name) for name in ("save", "savez", "savetxt")),
}


@functools.lru_cache(maxsize=1)
def _nodes(source: str) -> tuple[ast.AST, ...]:
    """Returns all nodes of a source, which several tests read in turn."""
    return tuple(ast.walk(ast.parse(source)))


def _writing_calls(source: str) -> set[str]:
    """The names of the calls of a source that write files."""
    found = set()
    for node in _nodes(source):
        if not isinstance(node, ast.Call):
            continue
        of, name = "", getattr(node.func, "id", "")
        if isinstance(node.func, ast.Attribute):
            value, name = node.func.value, node.func.attr
            of = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
        if name in ("open", "GFile", "FastGFile", "fdopen"):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            modes = [each.value for each in given if isinstance(each, ast.Constant)]
            if any(re.fullmatch("[rwaxbt]*[wax+][rwaxbt+]*", str(mode)) for mode in modes):
                found.add(name)
        elif name in _WRITING_CALLS or (of, name) in _WRITING_CALLS_OF:
            found.add(name)
    return found


def _python_files() -> list[pathlib.Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def _imported_names(source: str) -> set[str]:
    """Every name that a source imports, in full: `from a import b` imports `a.b`."""
    names = set()
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _is_private(name: str) -> bool:
    """Returns whether an imported name lacks a public alias; wire formats (`*_pb2`) are public and stable."""
    parts = name.split(".")
    if any(part.endswith("_pb2") for part in parts):
        return False
    if parts[0] == "tensorflow":
        return len(parts) > 1 and parts[1] in ("python", "compiler", "core", "dtensor", "lite")
    if parts[0] == "tfx":
        return len(parts) > 1 and parts[1] != "v1"
    if parts[0] == "tensorflow_model_analysis":
        return len(parts) > 2
    return False


def _private_names(source: str) -> list[str]:
    found = sorted(name for name in _imported_names(source) if _is_private(name))
    attributes = (node for node in _nodes(source) if isinstance(node, ast.Attribute))
    return found + [f"*.{node.attr}" for node in attributes if node.attr == "__internal__"]


def test_import_contracts_hold():
    # lint-imports is next to the interpreter, even if the environment is not activated.
    command = [str(pathlib.Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_broken_import_contract_is_noticed(tmp_path):
    # The package without a line in it.
    for package in ("tfx_tpu_trainer", "pipelines"):
        for path in (ROOT / package).rglob("*.py"):
            empty = tmp_path / path.relative_to(ROOT)
            empty.parent.mkdir(parents=True, exist_ok=True)
            empty.touch()
    # What the contracts let pass must be there.
    for name in ("file_systems.py", "whole_files.py"):
        (tmp_path / "tfx_tpu_trainer" / "_support" / name).write_text(
            "import tensorflow\n", encoding="utf-8"
        )
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    command = [str(pathlib.Path(sys.executable).with_name("lint-imports")), "--no-cache"]

    def lint() -> subprocess.CompletedProcess[str]:
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        # Its lines end at 80 columns.
        run.stdout = " ".join(run.stdout.split())
        return run

    kept = lint()
    assert kept.returncode == 0, kept.stdout + kept.stderr

    engine = tmp_path / "tfx_tpu_trainer" / "estimator" / "_engine" / "__init__.py"
    engine.write_text("import tfx_tpu_trainer.estimator.export\nimport tfx\n", encoding="utf-8")
    broken = lint()
    assert broken.returncode != 0
    assert "tfx_tpu_trainer.estimator._engine -> tfx_tpu_trainer.estimator.export" in broken.stdout
    assert "tfx_tpu_trainer.estimator._engine -> tfx" in broken.stdout

    engine.write_text("", encoding="utf-8")
    below = engine.parent / "copying" / "__init__.py"
    below.write_text("import tfx_tpu_trainer.estimator._engine.training\n", encoding="utf-8")
    broken = lint()
    assert broken.returncode != 0
    assert (
        "tfx_tpu_trainer.estimator._engine.copying -> tfx_tpu_trainer.estimator._engine.training"
        in broken.stdout
    )


def test_the_picture_of_the_layers_is_that_of_the_contracts():
    page = draw_pictures.LAYERS_PAGE.read_text(encoding="utf-8")
    assert draw_pictures.layers_page(page) == page, "call `make docs`"
    drawn = draw_pictures.layers_picture(draw_pictures.rows_of(draw_pictures.contracts()))
    assert draw_pictures.LAYERS_PICTURE.read_text(encoding="utf-8") == drawn, "call `make docs`"


def test_a_picture_has_layers_in_their_order_and_what_is_forbidden():
    contracts = [
        {
            "type": "layers",
            "layers": ["tfx_tpu_trainer.top", "tfx_tpu_trainer.a | tfx_tpu_trainer.b"],
        },
        {"type": "layers", "containers": ["tfx_tpu_trainer.a"], "layers": ["x", "y | z"]},
        {
            "type": "forbidden",
            "source_modules": ["tfx_tpu_trainer.b"],
            "forbidden_modules": ["tfx"],
        },
    ]
    rows = draw_pictures.rows_of(contracts)
    assert rows == {"": [["top"], ["a", "b"]], "a": [["x"], ["y", "z"]]}
    svg = ElementTree.fromstring(draw_pictures.layers_picture(rows))
    space = "{http://www.w3.org/2000/svg}"
    at = {text.text: float(text.attrib["y"]) for text in svg.iter(f"{space}text")}
    assert at["top"] < at["a"] == at["b"] < at["in a"] < at["x"] < at["y"] == at["z"]
    assert len(list(svg.iter(f"{space}rect"))) == 6
    assert draw_pictures.forbidden(contracts).splitlines()[2:] == ["| `b` | `tfx` |"]


def test_the_files_that_the_page_sends_readers_to_are_there():
    page = draw_pictures.LAYERS_PAGE.read_text(encoding="utf-8")
    # The environment is in a folder of the checkout, too, with 40,000 files.
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    files = {str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.py")}
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page))
    assert len(named) > 20
    assert not {
        name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)
    }


def test_importing_the_package_imports_neither_tensorflow_nor_tfx():
    # Listing its names, like a shell's completion, does not import it, either.
    program = (
        "import sys, tfx_tpu_trainer\n"
        "assert {'TpuTrainer', 'TpuSpec'} <= set(dir(tfx_tpu_trainer))\n"
        "tfx_tpu_trainer.TpuSpec\n"
        "print([name for name in ('tensorflow', 'tfx', 'keras', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from tensorflow.python.training import saver", True),
        ("import tensorflow.python.tpu as t", True),
        ("from tfx import types", True),
        ("from tfx.types import standard_artifacts", True),
        ("tf.__internal__.tracking", True),
        ("from tensorflow_model_analysis.writers import metrics_writer", True),
        ("import tensorflow as tf", False),
        ("from tfx import v1 as tfx", False),
        ("from tfx.v1.types import standard_artifacts", False),
        ("import tensorflow_model_analysis as tfma", False),
        ("from tensorflow.core.protobuf import saved_model_pb2", False),
    ],
)
def test_private_names_are_recognised(line, names):
    assert bool(_private_names(line)) is names


def _generators_in_graphs(source: str) -> list[str]:
    """Returns the generators that yield inside a block that sets a default graph, session or scope.

    If a caller leaves such a generator unfinished, for example by an error whose traceback is kept, it stays in graph
    mode.
    """
    return [
        function.name
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        and "contextmanager" not in " ".join(map(ast.unparse, function.decorator_list))
        for block in ast.walk(function)
        if isinstance(block, ast.With)
        and any(GRAPH_BLOCK.match(ast.unparse(item.context_expr)) for item in block.items)
        and any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(block))
    ]


_FINDERS = (_private_names, _writing_calls, _generators_in_graphs)


@dataclasses.dataclass(frozen=True)
class _Source:
    """Private names that a file of ours imports, and calls by which it writes."""

    private_names: list[str]
    writing_calls: set[str]
    generators_in_graphs: list[str]


@pytest.fixture(scope="module")
def sources() -> dict[pathlib.Path, _Source]:
    files = [*_python_files(), *sorted((ROOT / "kubeflow").rglob("*.py"))]
    texts = ((path, path.read_text(encoding="utf-8")) for path in files)
    return {path: _Source(*(find(text) for find in _FINDERS)) for path, text in texts}


def test_private_names_are_imported_in_their_own_modules_only(sources):
    found = {
        str(path.relative_to(ROOT)): sources[path].private_names
        for path in _python_files()
        if not PRIVATE_NAME_MODULE.fullmatch(path.name) and sources[path].private_names
    }
    assert not found, f"move these to tf_private.py, tfx_private.py or tfma_private.py: {found}"


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ('open(path, "w")', True),
        ('path.open(mode="ab")', True),
        ('tf.io.gfile.GFile(path, "wb")', True),
        ("tf.io.gfile.rename(a, b)", True),
        ("os.replace(a, b)", True),
        ("shutil.copytree(a, b)", True),
        ("path.write_text(text)", True),
        ("tf.io.TFRecordWriter(path)", True),
        ("json.dump(values, file)", True),
        ("open(path)", False),
        ('tf.io.gfile.GFile(path, "r")', False),
        ('zipfile.ZipFile(path).open("a.txt")', False),
        ('text.replace("a", "b")', False),
        ("graph.copy()", False),
        ("json.dumps(values)", False),
    ],
)
def test_writers_are_recognised(line, writes):
    assert bool(_writing_calls(line)) is writes


def test_files_are_written_whole(sources):
    found = {
        str(path.relative_to(ROOT)): source.writing_calls
        for path, source in sources.items()
        if path.name != "whole_files.py" and source.writing_calls
    }
    known = {path: set(calls) for path, calls in OTHER_WRITERS.items()}
    assert found == known, (
        "write by tfx_tpu_trainer/_support/whole_files.py, or say why nobody sees half"
    )


@pytest.mark.parametrize(
    ("block", "stays"),
    [
        ("with tf.Graph().as_default(), tf.device('/cpu:0'):\n  yield 1", True),
        ("with v1.Session() as session:\n  for row in rows:\n    yield row", True),
        ("with v1.variable_scope('a'):\n  yield from rows", True),
        ("with strategy.scope():\n  yield 1", True),
        ("with tf.Graph().as_default():\n  rows = [1]\n yield from rows", False),
        ("with contextlib.closing(v1.Session(graph=graph)) as session:\n  yield 1", False),
        ("with open(path) as file:\n  yield from file", False),
    ],
)
def test_generators_that_stay_in_a_graph_are_recognised(block, stays):
    assert bool(_generators_in_graphs(f"def rows():\n {block}")) is stays
    assert not _generators_in_graphs(f"@contextlib.contextmanager\ndef rows():\n {block}")


def test_no_generator_stays_in_a_graph_while_it_waits(sources):
    found = {
        str(path.relative_to(ROOT)): source.generators_in_graphs
        for path, source in sources.items()
        if source.generators_in_graphs
    }
    assert not found, f"left half-way, they leave their thread in graph mode: {found}"


def test_no_file_names_a_machine_or_a_package_registry():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file() or path == pathlib.Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # pictures and recorded models
        found += [
            f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
            for pattern in (PATH_OF_A_MACHINE, REGISTRY_HOST)
            for match in pattern.finditer(text)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "module", ["tfx_tpu_trainer.estimator._engine.loop", "tfx_tpu_trainer", "pipelines.taxi.model"]
)
def test_a_warning_of_our_own_code_is_an_error(module):
    with pytest.raises(DeprecationWarning, match="ours"):
        warnings.warn_explicit("ours", DeprecationWarning, "file.py", 1, module=module)


def test_a_warning_of_a_dependency_is_none_of_our_errors(recwarn):
    warnings.warn_explicit("theirs", DeprecationWarning, "file.py", 1, module="tensorflow.keras")
    assert [str(warning.message) for warning in recwarn] == ["theirs"]


ENGINE = ROOT / "tfx_tpu_trainer" / "estimator" / "_engine"

# Names of the API: what a TPUEstimatorSpec calls `host_call`, and a keyword of `extending`'s `slice_eval_metrics`.
OF_THE_API = re.compile(r"host_call\w*|\w*HostCall\w*|HostFunction|host_function|on_this_host")

# TensorFlow's own modules and classes, and the names of files in a model_dir.
OF_TENSORFLOW = re.compile(
    r"autograph\.core\S*|`TPUStrategy`|^from tensorflow\S* import.*|/host<number>-<step>"
)

PLACE = re.compile(
    r"(?<![A-Za-z])(?i:cores?|strateg(?:y|ies)|hosts?)(?![a-z])|(?:Core|Host|Strateg)[a-z]*"
)


def _names_and_prose(path):
    """Yields names, comments and docstrings of a module; what a program is told in strings is left out."""
    source = path.read_text()
    lines = source.splitlines()
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = (
            token.type == tokenize.STRING
            and previous
            in (
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.NL,
            )
            and token.string.startswith(('"""', 'r"""'))
        )
        is_import = token.type == tokenize.NAME and lines[token.start[0] - 1].startswith(
            "from tensorflow"
        )
        if (
            is_docstring
            or token.type == tokenize.COMMENT
            or (token.type == tokenize.NAME and not is_import)
        ):
            yield token.start[0], token.string
        previous = token.type


def test_the_engine_knows_no_place():
    named = [
        f"{path.relative_to(ENGINE)}:{line}: {found[0]}"
        for path in sorted(ENGINE.rglob("*.py"))
        for line, text in _names_and_prose(path)
        for found in PLACE.finditer(OF_TENSORFLOW.sub("", OF_THE_API.sub("", text)))
    ]
    assert not named, "a place's own code belongs to estimator/places or estimator/tpu/cores"

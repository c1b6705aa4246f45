"""Tests a user's project: a folder with config.yaml and pipeline.py."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bad_input import case, row
from tfx_tpu_trainer._support.processes import module_command
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.project.config import ConfigError, ProjectConfig
from tfx_tpu_trainer.workbench.project.project import (
    find_pipeline,
    load_project,
    pipeline_names,
)
from tfx_tpu_trainer.workbench.project.roots import Root

YAML = """
name: mine
root: runs
data: rows
trainer: {module: model, label_key: y, train_steps: 10}
"""
PIPELINE = """
from tfx import v1 as tfx

import model


@tfx.dsl.components.component
def Write(text: tfx.dsl.components.Parameter[str], model: tfx.dsl.components.OutputArtifact[
        tfx.types.standard_artifacts.Model]):
    from pathlib import Path

    if not text:
        raise ValueError("no text")
    Path(model.uri).mkdir(parents=True, exist_ok=True)
    (Path(model.uri) / "text").write_text(text)


def create_pipeline(config):
    text = config.model["text"] and f"{config.model['text']} {model.WORD} {config.data}"
    return tfx.dsl.Pipeline(
        pipeline_name=config.name, pipeline_root=config.pipeline_root, components=[Write(text=text)]
    )
"""


def make_project(folder: Path, *, config: str = YAML, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"pipeline": PIPELINE, "model": "WORD = 'reads'\n", **files}
    for name, content in contents.items():
        (folder / f"{name}.py").write_text(content)
    (folder / "config.yaml").write_text(config)
    (folder / "rows").mkdir()
    (folder / "rows" / "a.csv").write_text("x,y\n1,2\n")
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return make_project(tmp_path / "mine")


def test_paths_of_a_config_start_from_the_project_and_those_of_options_from_here(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent)
    found = load_project("mine")
    config = found.config(overrides=["serving_dir=pushed", "metadata_path=gs://bucket/file"])
    assert config.root == str(project / "runs")
    assert config.data == str(project / "rows")
    assert config.serving_dir == str(project / "pushed")
    assert config.metadata_path == "gs://bucket/file"
    assert found.config(root="elsewhere").root == str(project.parent / "elsewhere")
    overrides = ["trainer.module=null", "trainer.module_file=other.py"]
    assert found.config(overrides=overrides).trainer.module_file == str(project / "other.py")


def test_the_working_directory_is_the_project_unless_another_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    assert load_project() == load_project(project)
    assert load_project().import_root == project
    monkeypatch.chdir("rows")
    assert load_project("..") == load_project(project)


def test_a_project_without_a_config_class_takes_any_keys_for_its_model(project: Path) -> None:
    config = load_project(project).config(overrides=["model.units=[8, 4]", "model.rate=0.1"])
    assert type(config) is ProjectConfig
    assert config.model == {"units": [8, 4], "rate": 0.1}


def test_two_projects_in_one_process_have_their_own_config_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("one", "two"):
        source = (
            "from tfx_tpu_trainer.workbench.project.config import PipelineConfig\n"
            f"class Config(PipelineConfig):\n    {name}: int = 1\n"
        )
        make_project(tmp_path / name, config=f"{YAML}\n{name}: 5\n", config_=source)
        (tmp_path / name / "config_.py").rename(tmp_path / name / "config.py")
    for name in ("one", "two", "one"):
        assert getattr(load_project(tmp_path / name).config(), name) == 5


def test_a_project_that_is_a_package_is_imported_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = make_project(tmp_path / "ours" / "first")
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    found = load_project(folder)
    assert (found.package, found.import_root, found.base) == ("ours.first", tmp_path, folder)
    monkeypatch.chdir(tmp_path)
    named = find_pipeline("ours.first")
    assert (named.package, named.import_root, named.base) == ("ours.first", tmp_path, tmp_path)
    assert named.words == ["--pipeline", "ours.first"]
    assert found.words == ["--project", str(folder)]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        module_command("tfx_tpu_trainer.workbench.cli.main", *words),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


@pytest.mark.matrix
@pytest.mark.e2e
def test_a_project_is_run_listed_shown_and_cleaned_from_its_folder(project: Path) -> None:
    ended = run("run", "--set", "model.text=it", cwd=project)
    assert ended.returncode == 0, ended.stdout
    (written,) = (project / "runs" / "artifacts" / "Write" / "model").glob("*/text")
    assert written.read_text() == f"it reads {project / 'rows'}"

    failed = run("run", "--set", "model.text=''", "--project", str(project), cwd=project.parent)
    assert failed.returncode == 1
    assert "Write failed: " in failed.stdout and "no text" in failed.stdout

    root = Root.of(load_project(project).config())
    history = CliRunner().invoke(main, ["history", "--project", str(project)])
    rows = [line.split() for line in history.output.splitlines() if line.startswith("20")]
    # "not judged", and the error below.
    assert [row[1] for row in rows] == ["not", "failed", "Write:"]
    assert "model.text it → ''" in history.output
    runs = [row[0] for row in rows]
    for named, says in (
        ([runs[0]], ["complete, started", "Write", "not judged", root.log_folder(0) or "log.txt"]),
        ([], ["failed, started", "Write failed: ", "no text", f"{failed_log(root)}"]),
    ):
        shown = CliRunner().invoke(main, ["show", *named, "--project", str(project)])
        assert shown.exit_code == 0, shown.output
        for each in says:
            assert str(each) in shown.output
    cleaned = CliRunner().invoke(main, ["clean", "--project", str(project)])
    assert "keeps 2 of 2 runs" in cleaned.output, cleaned.output


def failed_log(root: Root) -> str:
    """The name of the newest run's folder."""
    return max(path.name for path in (root.folder / "logs").iterdir())


@row("runners", "`tfx-tpu-trainer run` if no project is", "error: '", "it has no pipeline.py")
def test_a_folder_without_a_pipeline_is_refused(tmp_path, monkeypatch, refused) -> None:
    monkeypatch.chdir(tmp_path)
    refused.output(CliRunner().invoke(main, ["run"]))


@row(
    "runners",
    "`tfx-tpu-trainer run --project none`",
    "error: the folder 'none' does not exist; give",
)
def test_a_folder_that_is_none_is_refused(tmp_path, monkeypatch, refused) -> None:
    monkeypatch.chdir(tmp_path)
    refused.output(CliRunner().invoke(main, ["run", "--project", "none"]))


@row(
    "runners",
    "`tfx-tpu-trainer history` if no project is",
    "it has no pipeline.py; change to the folder that has it",
    "or give --root",
)
def test_the_history_needs_a_project_or_a_root(tmp_path, monkeypatch, refused) -> None:
    monkeypatch.chdir(tmp_path)
    refused.output(CliRunner().invoke(main, ["history"]))


@row("runners", "`tfx-tpu-trainer show` before the first run", "has no runs (no metadata")
def test_what_has_no_runs_shows_none(project, refused) -> None:
    refused.output(CliRunner().invoke(main, ["show", "--project", str(project)]))


def test_a_project_is_named_once(project: Path) -> None:
    words = ["run", "--project", str(project), "--pipeline", "taxi"]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2
    assert "name a project; give one of them" in ended.output


@row(
    "runners",
    "a project whose `trainer.module` has the name of an installed package",
    "error: the module 'click' of '",
    "has the name of an installed module (",
    "give it another name",
)
def test_a_module_that_an_import_would_not_find_is_refused(project, refused) -> None:
    (project / "click.py").touch()
    words = ["run", "--project", str(project), "--set", "trainer.module=click"]
    refused.output(CliRunner().invoke(main, words))


@row(
    "runners",
    "a project without `data` and without `data.py`",
    "error: data of 'mine' is null, and '",
    "has no data.py that finds it; set data to",
)
def test_data_that_nothing_finds_are_asked_for(project, refused) -> None:
    words = ["run", "--project", str(project), "--set", "data=null"]
    refused.output(CliRunner().invoke(main, words))


@row(
    "config",
    "a project whose Config is not a PipelineConfig",
    "config.py: Config is not a PipelineConfig; derive it from",
)
def test_a_config_class_of_another_kind_is_refused(project, refused) -> None:
    (project / "config.py").write_text("class Config: pass\n")
    with refused(ConfigError):
        load_project(project).config()


@row(
    "config",
    "a project whose Config has a validator that raises a KeyError",
    "config.py can't check the settings (KeyError: 'absent', config.py line 6); correct it",
)
def test_a_validator_that_fails_is_named_with_its_line(project, refused) -> None:
    (project / "config.py").write_text(
        "import pydantic\n"
        "from tfx_tpu_trainer.workbench.project.config import PipelineConfig\n"
        "class Config(PipelineConfig):\n"
        "    @pydantic.model_validator(mode='after')\n"
        "    def check(self):\n"
        "        return {}['absent']\n"
    )
    with refused(ConfigError):
        load_project(project).config()


@pytest.mark.parametrize("command", ["run", "history"])
def test_a_command_without_its_extra_names_the_install(command: str) -> None:
    program = (
        "import sys; sys.modules['ml_metadata'] = None; from tfx_tpu_trainer.workbench.cli.main import main; "
        f"main(['{command}', '--root', 'runs'])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == (
        "Error: The runner of pipelines needs ml_metadata, which is not installed: "
        "pip install 'tfx-tpu-trainer[tfx]'\n"
    )


def test_pipelines_are_found_by_folder() -> None:
    assert pipeline_names() == ["digits", "penguin", "taxi"]
    assert find_pipeline("pipelines.taxi").package == find_pipeline("taxi").package


@pytest.mark.parametrize(
    "name",
    [
        case(
            "config",
            f"`--pipeline {name}`",
            f"unknown pipeline {name!r}; {hint} here: digits, penguin, taxi; name another",
            values=name,
        )
        for name, hint in {
            "taxy": "did you mean 'taxi'? Pipelines",
            "../../x": "pipelines",
            ".taxi": "did you mean 'taxi'? Pipelines",
            "os.path": "pipelines",
            "''": "pipelines",
        }.items()
    ],
)
def test_what_is_no_pipeline_is_refused(name: str, refused) -> None:
    with refused(ConfigError):
        find_pipeline(name)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        case(
            "config",
            f"a pipeline whose `config.py` {given}",
            f"config.py has no usable config ({says}",
            "give it a class Config(PipelineConfig)",
            values=(package, source),
        )
        for package, given, source, says in (
            ("mine.one", "has no class Config", "", "AttributeError: "),
            ("mine.two", "is not Python", "class", "SyntaxError: invalid syntax"),
            (
                "mine.three",
                "imports what does not exist",
                "import no",
                "ModuleNotFoundError: No module",
            ),
            (
                "mine.four",
                "fails",
                "\nx = 1 / 0",
                "ZeroDivisionError: division by zero, config.py line 2",
            ),
            (
                "mine.five",
                "ends the process",
                "raise SystemExit(0)",
                "SystemExit: 0, config.py line 1",
            ),
        )
    ],
)
def test_a_pipeline_without_a_config_class_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, source: str, refused
) -> None:
    folder = tmp_path.joinpath(*package.split("."))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(YAML)
    (folder / "config.py").write_text(source)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with refused(ConfigError):
        find_pipeline(package).config_class()

"""A config file that is none; settings changed in one: all other lines stay, or nothing changes."""

from pathlib import Path

import pytest

from pipelines.taxi.config import Config
from tests import bad_input
from tests.bad_input import case
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.config_file import change_config, load_config
from tfx_tpu_trainer.workbench.project.project import Project

CONFIG = """\
# A project.
name: clicks # its name
root: runs

trainer: # what is trained
  module: model
  label_key: y
  train_steps: 600 # an hour
  train_batch_size: 128

  # The end.
  save_summary_steps: 50 # often
# The model's own.
model: {units: 3}
"""
SPOT = {"slice_name": "v5e:2x4", "spot": True}
ADDED = "  tpu: {slice_name: 'v5e:2x4', spot: true}\n"


@pytest.fixture
def project(tmp_path):
    return Project(folder=tmp_path, package="", base=tmp_path)


@pytest.mark.parametrize(
    ("old", "settings", "new"),
    [
        (
            CONFIG,
            {"trainer.tpu": SPOT, "trainer.train_steps": 75, "trainer.train_batch_size": 1024},
            CONFIG.replace("600", "75")
            .replace("128", "1024")
            .replace("# often\n", f"# often\n{ADDED}"),
        ),
        (
            CONFIG.replace("  module", "  tpu: v5e:1x1 # small\n  module"),
            {"trainer.tpu": "v5p:2x2x1"},
            CONFIG.replace("  module", "  tpu: v5p:2x2x1 # small\n  module"),
        ),
        (
            CONFIG.replace("  module", "  tpu:\n    slice_name: v5e:1x1\n    zone: a # near\n\n  module"),
            {"trainer.tpu": SPOT},
            CONFIG.replace("  module", f"{ADDED[:-1]} # near\n\n  module"),
        ),
        # Windows's line ends, and a last line without one.
        (
            "name: a\r\nroot: b\r\ntrainer:\r\n  module: m\r\n  train_steps: 1\r\n  label_key: y",
            {"trainer.tpu": "v5e:8"},
            "name: a\r\nroot: b\r\ntrainer:\r\n  module: m\r\n  train_steps: 1\r\n  label_key: y\r\n  tpu: v5e:8\r\n",
        ),
        (
            "{name: a, root: b, trainer: {module: m, label_key: y, train_steps: 1}}",
            {"trainer.tpu": "v5e:8", "trainer.train_steps": 2},
            "{name: a, root: b, trainer: {module: m, label_key: y, train_steps: 2, tpu: v5e:8}}",
        ),
    ],
)  # fmt: skip
def test_only_the_settings_change(project, old, settings, new):
    project.config_file.write_bytes(old.encode())
    config = change_config(project, settings)
    assert project.config_file.read_bytes().decode() == new
    assert config.trainer.tpu.slice_name == (
        SPOT["slice_name"] if settings["trainer.tpu"] is SPOT else settings["trainer.tpu"]
    )
    assert project.config() == config


@pytest.mark.parametrize(
    ("old", "settings"),
    [
        case(
            "preflight",
            "`--choose`, whose slice does not divide `eval_batch_size`",
            "config.yaml: trainer: ",
            "eval_batch_size 100 must be divisible by the 8 replicas of v5e:2x4",
            values=(CONFIG.replace("50 #", "50\n  eval_batch_size: 100 #"), {"trainer.tpu": SPOT}),
        ),
        case(
            "preflight",
            "`--choose`, whose setting is an alias in the config",
            "is written in a form that can't be changed in place; set there trainer.train_steps: 9",
            values=(
                CONFIG.replace("600", "*steps").replace(
                    "name: clicks", "x: &steps 600\nname: clicks"
                ),
                {"trainer.train_steps": 9},
            ),
        ),
    ],
)  # fmt: skip
def test_a_config_that_can_t_be_changed_stays(project, old, settings, refused):
    project.config_file.write_text(old, "utf-8")
    with refused(ConfigError):
        change_config(project, settings)
    assert project.config_file.read_text("utf-8") == old
    assert [each.name for each in project.folder.iterdir()] == ["config.yaml"]


def no_config(given, content, *says):
    """A row of docs/bad-input.md for a file that holds no config."""
    return case("config", given, "config.yaml ", *says, values=content)


@pytest.mark.parametrize(
    "content",
    [
        no_config(
            "an empty file", b"", "must contain a mapping of settings, such as 'name: taxi'; found"
        ),
        no_config(
            "a list", b"- a\n- b\n", "must contain a mapping of settings, such as", "found list"
        ),
        no_config("brackets left open", b"name: [", "is not valid YAML: while parsing a flow node"),
        no_config("a key twice", b"name: a\nname: b\n", "the key 'name' is given twice", "line 2"),
        no_config(
            "text in Latin-1", "name: täxi".encode("latin-1"), "is not UTF-8", "save it as UTF-8"
        ),
        no_config(
            "text in UTF-16", "name: taxi".encode("utf-16"), "is not UTF-8", "save it as UTF-8"
        ),
        no_config("a NUL", b"name: taxi\0", "is not valid YAML: unacceptable character #x0000"),
        no_config("the key `[a, b]`", b"[a, b]: 1", "the key ['a', 'b'] is not a name", "line 1"),
        no_config(
            "lists 5,000 deep", b"x: " + b"[" * 5000, "is not valid YAML: it is nested too deeply"
        ),
        no_config(
            "the date 2020-99-01", b"x: 2020-99-01", "is not valid YAML: month must be in 1..12"
        ),
        no_config("a number of 5,000 digits", b"x: " + b"9" * 5000, "value has 5000 digits"),
        no_config(
            "a tag of Python", b"x: !!python/name:os", "is not valid YAML: could not determine"
        ),
        no_config(
            "two documents", b"a: 1\n---\nb: 1", "expected a single document", "another document"
        ),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes, refused) -> None:
    config_file = tmp_path / "config.yaml"
    config_file.write_bytes(content)
    with refused(ConfigError):
        load_config(Config, config_file)


@bad_input.row(
    "config",
    "a path where the file",
    "can't read the config '",
    "none.yaml': No such file or directory; give another with --config",
)
def test_a_missing_file_is_named(tmp_path: Path, refused) -> None:
    with refused(ConfigError):
        load_config(Config, tmp_path / "none.yaml")


@bad_input.row(
    "config",
    "a folder instead of a file",
    "can't read the config '",
    "': Is a directory; give another with --config",
)
def test_a_folder_is_no_config(tmp_path: Path, refused) -> None:
    with refused(ConfigError):
        load_config(Config, tmp_path)

"""Settings changed in a config file: all other lines stay, and a setting that does not hold changes nothing."""

import pytest

from tests.bad_input import case
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.config_changes import change_config
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

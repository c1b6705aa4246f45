from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from pipelines.config import ConfigError, load_config
from pipelines.registry import find_pipeline, pipeline_names
from pipelines.taxi.config import Config

YAML = """
name: taxi
root: runs/taxi
trainer:
  module: pipelines.taxi.model
  label_key: big_tip
  train_steps: 10
gate:
  at_least: {auc: 0.9}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    return path


def error_of(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Config, path, overrides=overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", pipeline_names())
def test_the_yaml_beside_each_pipeline_is_valid(name: str) -> None:
    definition = find_pipeline(name)
    config = load_config(definition.config_class(), definition.config_file)
    assert config.name == name
    assert config.root == f"runs/{name}"
    assert config.metadata_file == f"runs/{name}/metadata.sqlite"
    assert config.push_folder == f"runs/{name}/serving"


def test_pipelines_are_found_by_folder() -> None:
    assert pipeline_names() == ["digits", "taxi"]
    assert find_pipeline("pipelines.taxi").package == find_pipeline("taxi").package
    with pytest.raises(ConfigError, match="no pipeline 'taxy'; did you mean 'taxi'"):
        find_pipeline("taxy")


def test_a_tpu_slice_is_a_name_or_all_that_is_known_of_it(config_file: Path) -> None:
    config = load_config(Config, config_file, overrides=["trainer.tpu=v5e:8"])
    assert config.trainer.tpu is not None and config.trainer.tpu.tpu_slice.topology == "2x4"
    # The local runner hands a config to its child in this form.
    assert Config.model_validate_json(config.model_dump_json()) == config
    spot = "trainer.tpu={slice_name: v5e:2x4, spot: true}"
    config = load_config(Config, config_file, overrides=[spot])
    assert config.trainer.tpu is not None and config.trainer.tpu.spot
    assert "nearest: v5e:2x4" in error_of(config_file, "trainer.tpu=v5e:2x5")
    too_few = error_of(config_file, "trainer.tpu=v5e:8", "trainer.eval_batch_size=12")
    assert "eval_batch_size 12 must be divisible by the 8 replicas of v5e:2x4" in too_few


def test_overrides_reach_into_groups_and_are_read_as_yaml(config_file: Path) -> None:
    config = load_config(
        Config,
        config_file,
        overrides=[
            "trainer.train_steps=200",
            "model.hidden_units=[16, 8]",
            "model.learning_rate=1e-4",
            "trainer.use_tpu=true",
            "gate.at_least.accuracy=0.5",
            "data=/data/taxi",
            "trainer.eval_batch_size=null",
        ],
    )
    assert config.trainer.train_steps == 200
    assert config.model.hidden_units == (16, 8)
    assert config.model.learning_rate == 1e-4
    assert config.trainer.use_tpu is True
    assert config.gate.at_least == {"auc": 0.9, "accuracy": 0.5}
    assert config.data == "/data/taxi"
    assert config.trainer.eval_batch_size is None


def test_bulk_inference_is_asked_for_by_its_splits(config_file: Path) -> None:
    assert load_config(Config, config_file).bulk_inference is None
    config = load_config(Config, config_file, overrides=["bulk_inference.splits=[train, eval]"])
    assert config.bulk_inference.splits == ("train", "eval")
    assert "'bulk_inference.splits'" in error_of(config_file, "bulk_inference.splits=[]")
    assert "did you mean 'splits'?" in error_of(config_file, "bulk_inference.split=[eval]")


def test_values_win_over_the_file_and_lose_against_overrides(config_file: Path) -> None:
    assert load_config(Config, config_file, values={"root": "/a"}).root == "/a"
    assert (
        load_config(Config, config_file, values={"root": "/a"}, overrides=["root=/b"]).root == "/b"
    )


def test_a_config_is_frozen(config_file: Path) -> None:
    config = load_config(Config, config_file)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.name = "other"
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.trainer.train_steps = 3


def test_an_unknown_key_is_refused_with_the_nearest_valid_one(config_file: Path) -> None:
    message = error_of(config_file, "trainer.trian_steps=5")
    assert message.startswith("--set trainer.trian_steps=5: unknown key 'trian_steps' in 'trainer'")
    assert "did you mean 'train_steps'?" in message
    assert "did you mean 'gate'?" in error_of(config_file, "gaet=1")


def test_an_unknown_key_in_the_file_is_named_with_the_file(config_file: Path) -> None:
    config_file.write_text(YAML + "  at_lest: {auc: 0.5}\n")
    message = error_of(config_file)
    assert message.startswith(f"{config_file}: unknown key 'at_lest' in 'gate'")
    assert "did you mean 'at_least'?" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.train_steps=many", "'trainer.train_steps' is 'many' (str)"),
        (
            "trainer.train_steps=0",
            "'trainer.train_steps' is 0 (int): input should be greater than 0",
        ),
        ("trainer.train_steps='5'", "'trainer.train_steps' is '5' (str)"),
        ("trainer.use_tpu=1", "'trainer.use_tpu' is 1 (int)"),
        ("name=Taxi Rides", "'name' is 'Taxi Rides' (str)"),
        ("model.hidden_units=[8, -1]", "'model.hidden_units.1' is -1 (int)"),
        ("gate.at_least.auc=high", "'gate.at_least.auc' is 'high' (str)"),
        ("user_code=wheel", "'file' or 'import'"),
        ("gate.max_drop.auc=-0.1", "max_drop of 'auc' is -0.1"),
        ("trainer.module_file=model.py", "exactly one of 'module'"),
        ("trainer=5", "'trainer' is 5 (int)"),
        ("name.first=x", "'name' is a value ('taxi'), not a group"),
        ("trainer.train_steps", "is not of the form key=value"),
        ("=5", "is not of the form key=value"),
        ("model.hidden_units=[1", "is not valid YAML"),
    ],
)
def test_a_bad_value_is_named_with_its_place(
    config_file: Path, override: str, expected: str
) -> None:
    message = error_of(config_file, override)
    assert expected in message
    assert override in message
    assert "\n" not in message


def test_every_bad_value_gets_a_line(config_file: Path) -> None:
    assert len(error_of(config_file, "trainer.train_steps=0", "gaet=1").splitlines()) == 2


def test_a_missing_key_is_named(config_file: Path) -> None:
    config_file.write_text(YAML.replace("  label_key: big_tip\n", ""))
    assert error_of(config_file) == f"{config_file}: the key 'trainer.label_key' is missing; add it"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n- b\n", "must hold a mapping of settings, found list"),
        ("name: [", "is not valid YAML"),
        ("name: a\nname: b\n", "the key 'name' is given twice"),
    ],
)
def test_a_file_that_is_no_config_is_refused(config_file: Path, text: str, expected: str) -> None:
    config_file.write_text(text)
    assert expected in error_of(config_file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "cannot read the config" in error_of(tmp_path / "none.yaml")


def test_reading_a_config_imports_no_tensorflow() -> None:
    program = (
        "import sys; from pipelines.local_runner import resolve_config; "
        "resolve_config('taxi', config_file=None, root=None, overrides=[]); "
        "print(sorted({'tensorflow', 'tfx'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"

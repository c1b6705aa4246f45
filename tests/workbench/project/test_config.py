import json
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
import yaml

from pipelines.taxi.config import Config
from tests import bad_input
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline, pipeline_names

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


def test_a_tpu_slice_is_a_name_or_all_that_is_known_of_it(config_file: Path) -> None:
    config = load_config(Config, config_file, overrides=["trainer.tpu=v5e:8"])
    assert config.trainer.tpu is not None and config.trainer.tpu.tpu_slice.topology == "2x4"
    # The local runner hands a config to its child in this form.
    assert Config.model_validate_json(config.model_dump_json()) == config
    spot = "trainer.tpu={slice_name: v5e:2x4, spot: true}"
    config = load_config(Config, config_file, overrides=[spot])
    assert config.trainer.tpu is not None and config.trainer.tpu.spot


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


def override(text, *says):
    """A row of docs/bad-input.md for one --set."""
    return bad_input.case("config", f"`--set {text}`", f"--set {text}", *says, values=text)


@pytest.mark.parametrize(
    "text",
    [
        override(
            "trainer.trian_steps=5", "unknown key 'trian_steps' in 'trainer'", "'train_steps'?"
        ),
        override(
            "pods.all.label={a: b}", "unknown key 'label' in 'pods.all'", "did you mean 'labels'?"
        ),
        override(
            "pods.all.labels={a b: c}", "pods.all.labels: 'a b' is not a valid key of a label; give"
        ),
        override(
            "pods.all.labels.team=a b",
            "pods.all.labels.team: 'a b' is not a valid value of a label;",
        ),
        override("gaet=1", "unknown key 'gaet'; did you mean 'gate'? Valid keys: "),
        override("trainer.train_steps=many", "'trainer.train_steps' is 'many' (str): input should"),
        override("trainer.train_steps=0", "is 0 (int): input should be greater than 0"),
        override(
            "trainer.train_steps='5'", "'trainer.train_steps' is '5' (str): input should be a"
        ),
        override(f"trainer.train_steps={2**63}", "less than or equal to 2147483647"),
        override(f"trainer.train_batch_size={2**31}", "less than or equal to 2147483647"),
        override("trainer.eval_steps=0", "is 0 (int): input should be greater than 0"),
        override(
            "trainer.tf_random_seed=1e20", "is 1e+20 (float): input should be a valid integer"
        ),
        override(f"trainer.tf_random_seed={10**20}", "less than or equal to 9223372036854775807"),
        override("trainer.use_tpu=1", "'trainer.use_tpu' is 1 (int): input should be a valid bool"),
        override("trainer.label_key=''", "'trainer.label_key' is '' (str)", "at least 1 character"),
        override(
            "trainer.module='a b'", "'a b' is not an import path; give one such as pipelines.taxi"
        ),
        override(
            "trainer.module=../../x", "'../../x' is not an import path; give one such as pipelines"
        ),
        override(
            "trainer.module_file=model.py", "exactly one of 'module'", "set the others to null"
        ),
        override(
            "trainer.eval_evry_steps=5", "unknown key 'eval_evry_steps' in 'trainer'; did you"
        ),
        override("trainer.export_to_tpu=1", "trainer.export_to_tpu: 1 is not a boolean; give true"),
        override("trainer.best_metric=auc", "best_metric='auc' needs evaluations during training;"),
        override(
            "trainer.slicing_specs=[{feature_key: [hour]}]",
            "unknown key 'feature_key' in 'trainer.slicing_specs.0'",
            "did you mean 'feature_keys'? Valid keys: feature_keys, feature_values",
        ),
        override(
            "trainer.slicing_specs={feature_keys: [hour]}", "'trainer.slicing_specs' is {'feature"
        ),
        override(
            "trainer.warmup_batch_sizes=8", "warmup_batch_sizes: give a list of integers above 0"
        ),
        override("trainer.preflight=maybe", "is 'maybe' (str): input should be 'off', 'warn' or"),
        override("trainer.tpu=v9z:1", "unknown generation 'v9z'; use one of v2, v3"),
        override("trainer.tpu=v5e:2x5", "v5e has no slice '2x5'; nearest: v5e:2x4"),
        override("trainer.tpu=[1]", "TPU [1] names no slice: give a name such as 'v5e:2x4'"),
        override("trainer=5", "'trainer' is 5 (int): input should be a valid dictionary"),
        override(
            "name=Taxi Rides",
            "'Taxi Rides' is not a valid pipeline name; give up to 128 lower-case",
        ),
        override(
            "name=../../x",
            "'../../x' is not a valid pipeline name; give up to 128 lower-case letters",
        ),
        override("root=''", "root: '' is not a path; give a folder, locally or in a bucket,"),
        override("data=' '", "data: ' ' is not a path; give a folder, locally or in a bucket,"),
        override("metadata_path=''", "metadata_path: '' is not a path; give a folder"),
        override('serving_dir="a\\0"', r"serving_dir: 'a\x00' is not a path; give a folder"),
        override(
            "user_code=wheel", "'user_code' is 'wheel' (str): input should be 'file' or 'import'"
        ),
        override(
            "serving_absent=tips", "'serving_absent' is 'tips' (str): input should be a valid"
        ),
        override(
            "model.hidden_units=[8, -1]", "'model.hidden_units.1' is -1 (int): input should be"
        ),
        override("model.hidden_units=[]", "is [] (list): tuple should have at least 1 item"),
        override("model.learning_rate=.inf", "is inf (float): input should be a finite number"),
        override("model.learning_rate=-1", "is -1 (int): input should be greater than 0"),
        override(
            "bulk_inference.splits=[]", "'bulk_inference.splits' is [] (list)", "at least 1 item"
        ),
        override("bulk_inference.split=[eval]", "unknown key 'split'", "did you mean 'splits'?"),
        override(
            "gate.at_least.auc=high", "'gate.at_least.auc' is 'high' (str): input should be a"
        ),
        override("gate.at_least.auc=.nan", "is nan (float): input should be a finite number"),
        override("gate.at_most.auc=.inf", "is inf (float): input should be a finite number"),
        override(
            "gate.at_most.auc=0.1", "at_least of 'auc' is 0.9 and at_most 0.1: no model can satisfy"
        ),
        override(
            "gate.max_drop.auc=-0.1", "max_drop of 'auc' is -0.1; give the largest allowed drop"
        ),
        override(
            "model.hidden_units=[0]", "'model.hidden_units.0' is 0 (int): input should be greater"
        ),
        override("vertex={region: r, image: i}", "the key 'vertex.project' is missing; add it"),
    ],
)
def test_a_bad_value_is_named_with_its_place(config_file: Path, text: str, refused) -> None:
    with refused(ConfigError):
        load_config(Config, config_file, overrides=[text])


@pytest.mark.parametrize(
    "trainer",
    [
        bad_input.case(
            "config",
            f"`gate.require_alike_answers: true` with `trainer: {trainer}`",
            "gate.require_alike_answers would bless no model: set trainer.",
            needed,
            values=trainer,
        )
        for trainer, needed in (
            ("{}", "export_to_tpu to true"),
            ("{export_to_tpu: true, export_to_cpu: false}", "export_to_cpu to true"),
            ("{export_to_tpu: true, serving_check: 'off'}", "serving_check to warn or error"),
        )
    ],
)
def test_answers_must_be_compared_where_they_must_be_alike(config_file, trainer, refused) -> None:
    settings = [
        f"trainer.{key}={json.dumps(value)}" for key, value in yaml.safe_load(trainer).items()
    ]
    with refused(ConfigError):
        load_config(Config, config_file, overrides=["gate.require_alike_answers=true", *settings])


@pytest.mark.parametrize(
    "text",
    [
        bad_input.case("config", given, *says, values=text)
        for given, text, says in (
            (
                "`--set trainer.train_steps`",
                "trainer.train_steps",
                (
                    "--set 'trainer.train_steps' is not of the form key=value, such as trainer.train",
                ),
            ),
            ("`--set =5`", "=5", ("--set '=5' is not of the form key=value, such as",)),
            (
                "`--set name.first=x`",
                "name.first=x",
                (
                    "--set 'name.first=x': 'name' is a value ('taxi'), not a group of settings; set that value",
                ),
            ),
            ("`--set ''`", "", ("--set '' is not of the form key=value, such as",)),
            (
                "`--set model.hidden_units=[1`",
                "model.hidden_units=[1",
                ("--set 'model.hidden_units=[1': the value is not valid YAML: while parsing",),
            ),
            *(
                (
                    f"`--set trainer.train_steps={text}`, which YAML reads as {number}",
                    f"trainer.train_steps={text}",
                    (
                        f"{text} is YAML for the number {number}; write {number}, or '{text}' for a text",
                    ),
                )
                for text, number in (("010", 8), ("1:30", 90), ("-0_17", -15))
            ),
            (
                "`--set data=` and brackets 5,000 deep",
                "data=" + "[" * 5000,
                ("--set 'data=[[[[", "the value is not valid YAML: it is nested too deeply"),
            ),
            (
                "`--set gate.at_least.a.a.a...=1`, 5,000 groups deep",
                "gate.at_least." + "a." * 4997 + "a=1",
                ("--set 'gate.at_least.a.a", "5000 groups deep; no setting is deeper than 8"),
            ),
        )
    ],
)
def test_what_is_no_setting_is_named(config_file: Path, text: str, refused) -> None:
    with refused(ConfigError) as raised:
        load_config(Config, config_file, overrides=[text])
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(("text", "steps"), [("10", 10), ("1_000", 1000), ("0x10", 16), ("+7", 7)])
def test_whole_numbers_are_read_as_they_look(config_file: Path, text: str, steps: int) -> None:
    config = load_config(Config, config_file, overrides=[f"trainer.train_steps={text}"])
    assert config.trainer.train_steps == steps


def test_a_group_takes_another_one_s_keys_in(config_file: Path) -> None:
    config_file.write_text(YAML.replace("at_least: {auc: 0.9}", "at_least: &bounds {auc: 0.9}"))
    merged = "gate={at_least: &a {auc: 0.1}, at_most: {<<: *a, loss: 2.0, auc: 0.5}}"
    gate = load_config(Config, config_file, overrides=[merged]).gate
    assert gate.at_most == {"auc": 0.5, "loss": 2.0}


@bad_input.row(
    "config",
    "`at_lest` in the file's `gate`",
    "config.yaml: unknown key 'at_lest' in 'gate'; did you mean 'at_least'?",
)
def test_an_unknown_key_in_the_file_is_named_with_the_file(config_file: Path, refused) -> None:
    config_file.write_text(YAML + "  at_lest: {auc: 0.5}\n")
    with refused(ConfigError):
        load_config(Config, config_file)


@bad_input.row(
    "config",
    "two bad values",
    "--set trainer.train_steps=0: 'trainer.train_steps' is 0",
    "--set gaet=1: unknown key 'gaet'",
    lines=2,
)
def test_every_bad_value_gets_a_line(config_file: Path, refused) -> None:
    with refused(ConfigError) as raised:
        load_config(Config, config_file, overrides=["gaet=1", "trainer.train_steps=0"])
    assert len(str(raised.value).splitlines()) == 2


@bad_input.row(
    "config",
    "a batch that the slice's replicas can't share",
    "eval_batch_size 12 must be divisible by the 8 replicas of v5e:2x4: 8 or 16 would be",
)
def test_batches_fit_the_slice(config_file: Path, refused) -> None:
    overrides = ["trainer.tpu=v5e:8", "trainer.eval_batch_size=12"]
    with refused(ConfigError):
        load_config(Config, config_file, overrides=overrides)


@bad_input.row(
    "config",
    "a file without `trainer.label_key`",
    "config.yaml: the key 'trainer.label_key' is missing; add it",
)
def test_a_missing_key_is_named(config_file: Path, refused) -> None:
    config_file.write_text(YAML.replace("  label_key: big_tip\n", ""))
    with refused(ConfigError):
        load_config(Config, config_file)


def test_only_the_beginning_of_a_long_value_is_shown(config_file: Path) -> None:
    nested = "[[[[[[1]]]]]]" + ", x" * 2_000
    message = error_of(config_file, f"name=[{nested}]")
    assert len(message) < 1000
    assert "'name' is [" in message


def test_reading_a_config_imports_no_tensorflow() -> None:
    program = (
        "import sys; from tfx_tpu_trainer.workbench.project.project import find_pipeline; "
        "find_pipeline('taxi').config(); "
        "print(sorted({'tensorflow', 'tfx'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"

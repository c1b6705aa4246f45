"""Tests an unedited project of `tfx-tpu-trainer new`: its tests, a run, and TFX's own command line."""

import csv
import datetime
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from sklearn import datasets

from tfx_tpu_trainer.components.report import read_run_data
from tfx_tpu_trainer.serving import describe_saved_model
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.history.report import RunReport
from tfx_tpu_trainer.workbench.run.run_child import REPORT

pytestmark = [pytest.mark.e2e, pytest.mark.matrix]

REPOSITORY = Path(__file__).parents[3]
SECONDS = 800


def _run(*words: str, folder: Path, home: Path | None = None) -> str:
    """Runs a program in a folder, as an installed package would: the repository is on the path, behind the folder."""
    environment = dict(
        os.environ, PYTHONPATH=os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])
    )
    programs = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([programs, environment.get("PATH", os.defpath)])
    if home:
        environment["HOME"] = str(home)
    ended = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
    return ended.stdout


def _command(*words: str, folder: Path) -> str:
    return _run(sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main", *words, folder=folder)


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project for a table in a spreadsheet's form; only the date of the last login shows who leaves."""
    folder = tmp_path_factory.mktemp("new")
    today = datetime.date(2024, 6, 1)
    with open(folder / "members.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["customer id", "joined", "last login", "plan", "spent", "tickets", "left"])
        for row in range(600):
            days = row * 37 % 120
            writer.writerow(
                [
                    f"C{100_000 + row}",
                    today - datetime.timedelta(200 + row * 53 % 900),
                    f"{today - datetime.timedelta(days)} {row % 24:02d}:00:00",
                    ("free", "basic", "pro", "")[row % 4],
                    f"{row * 31 % 400 / 10}".replace(".", ",") if row % 7 else "",
                    row * 17 % 5,
                    int(days >= 60),
                ]
            )
    # In this process, which has imported what the command needs.
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        made = CliRunner().invoke(
            main, ["new", "churn", "--data", "members.csv", "--label", "left"]
        )
    assert made.exit_code == 0, made.output
    return folder / "churn"


@pytest.fixture(scope="module")
def churn_run(churn: Path) -> RunReport:
    """Returns the report of the project's first run."""
    _command("run", "--plain", folder=churn)
    (report,) = (churn / "runs" / "logs").glob(f"*/{REPORT}")
    return RunReport.read(report)


@pytest.mark.sweep
def test_the_project_s_own_tests_pass(churn):
    said = _run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", folder=churn
    )
    assert re.search(r"\b5 passed\b", said), said


def test_a_run_without_an_edit_is_blessed_and_pushed(churn, churn_run):
    assert churn_run.blessed is True and churn_run.pushed is not None
    # Half of the rows have each label, so the best constant is 1/2, whose loss is log(2).
    assert churn_run.eval_metrics["average_loss"] < 0.5 * math.log(2)
    probabilities = churn_run.prediction.outputs["probabilities"].split(", ")
    assert len(probabilities) == 2 and sum(map(float, probabilities)) == pytest.approx(1, abs=1e-3)
    assert len(list((churn / "runs" / "serving").iterdir())) == 1
    (page,) = (churn / "runs" / "artifacts" / "TpuTrainer" / "model_run").glob("*/run.json")
    errors = read_run_data(str(page)).errors
    assert (errors.kind, errors.classes) == ("scores", ("0", "1"))


@pytest.mark.parametrize(("backend", "ending"), [("kubeflow", "yaml"), ("vertex", "json")])
def test_it_compiles_for_a_cluster_by_its_config(churn, tmp_path, monkeypatch, backend, ending):
    monkeypatch.chdir(tmp_path)
    # Its modules have names that other projects of this process have too.
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("config", "pipeline", "transform", "transform.preprocessing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    text = (churn / "config.yaml").read_text(encoding="utf-8")
    filled_in = re.sub(r"^# (?=cluster:|  \w+: )", "", text, flags=re.MULTILINE)
    Path("cluster-config.yaml").write_text(filled_in, encoding="utf-8")
    words = ["compile", f"--{backend}", "--project", str(churn), "--config", "cluster-config.yaml"]
    # The second time, its own file exists.
    for _ in range(2):
        compiled = CliRunner().invoke(main, words)
        assert compiled.exit_code == 0, compiled.output
        assert compiled.stdout.startswith(f"churn.{ending}: compiled for ")
    assert {path.name for path in tmp_path.iterdir()} == {"cluster-config.yaml", f"churn.{ending}"}
    document = yaml.safe_load(Path(f"churn.{ending}").read_text(encoding="utf-8").split("---")[0])
    spec = document.get("pipelineSpec", document)
    executors = spec["deploymentSpec"]["executors"]
    images = {each["container"]["image"] for each in executors.values() if "container" in each}
    assert images == {"region-docker.pkg.dev/project/images/churn:1"}

    def constant(node: str, name: str) -> str:
        given = spec["root"]["dag"]["tasks"][node]["inputs"]["parameters"][name]
        return given["runtimeValue"]["constant"]

    assert spec["defaultPipelineRoot"] == "gs://bucket/churn/artifacts"
    assert constant("CsvExampleGen", "input_base") == "gs://bucket/churn/data"
    assert constant("TpuTrainer", "module") == "model"
    # In the image the project is the working directory; this machine's folders are not there.
    assert constant("ImportSchemaGen", "schema_file") == "schema/schema.pbtxt"
    assert str(churn.parent) not in json.dumps(document)


def test_a_request_gets_the_answer_that_predict_writes(churn, churn_run, tmp_path):
    import tensorflow as tf

    # The settings name no TPU: one graph, so no tags are needed.
    served = tf.saved_model.load(churn_run.pushed)
    request = json.loads((churn / "request.json").read_text(encoding="utf-8"))
    (inputs,) = (
        graph.signatures[request["signature_name"]].inputs
        for graph in describe_saved_model(churn_run.pushed)
    )
    (row,) = request["instances"]
    assert set(row) == set(inputs) == {"joined", "last login", "plan", "spent", "tickets"}
    answer = served.signatures[request["signature_name"]](
        **{name: tf.constant([row[name]], inputs[name].dtype) for name in inputs}
    )
    # From the file as the spreadsheet saved it, with semicolons and decimal commas; its second row is the first one
    # without a gap.
    said = _command(
        "predict", "../members.csv", "--output", str(tmp_path / "a.jsonl"), folder=churn
    )
    assert f"The model pushed last: runs/serving/{Path(churn_run.pushed).name}" in said
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    written = json.loads(lines[1])
    assert len(lines) == 600 and {name: written[name] for name in row} == row
    assert written["prediction"] == str(int(answer["class_id"][0]))
    probabilities = [written["probability_0"], written["probability_1"]]
    assert probabilities == pytest.approx(answer["probabilities"].numpy()[0].tolist(), rel=1e-5)


def test_without_a_pushed_model_the_blessed_one_answers(churn, churn_run):
    serving = churn / "runs" / "serving"
    moved = serving.rename(serving.with_name("moved"))
    try:
        said = _command("predict", "../members.csv", folder=churn)
    finally:
        moved.rename(serving)
    assert "Nothing is pushed; the last blessed model: runs/artifacts/TpuTrainer/model/" in said
    assert "... 590 more" in said


def _preflight(
    churn: Path, patched: pytest.MonkeyPatch, config: str, *options: str, exit_code: int = 0
) -> tuple[str, str]:
    """Runs a preflight in the project; returns its output, and the page that it names."""
    patched.chdir(churn)
    patched.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    try:
        ended = CliRunner().invoke(main, ["preflight", "--config", config, *options])
    finally:
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(churn)):
                del sys.modules[name]
    assert ended.exit_code == exit_code, ended.output
    said = " ".join(ended.output.split())
    return said, Path(said.rpartition("The page: ")[2].split()[0]).read_text(encoding="utf-8")


def test_a_preflight_is_of_the_model_that_the_project_trains(churn, churn_run, monkeypatch):
    fresh = churn / "fresh.yaml"
    text = (churn / "config.yaml").read_text(encoding="utf-8")
    fresh.write_text(text.replace("root: runs", "root: runs/fresh"), encoding="utf-8")
    step = ("--tpu", "v5e:2x4", "--steps", "train")
    said, page = _preflight(churn, monkeypatch, "config.yaml", *step)
    assert "Transform's output of the run 20" in said
    rows = yaml.safe_load(text)["trainer"]["train_batch_size"]
    assert f"train, {rows:,} rows: compiles and fits" in said and "8 replicas" in said
    made, by_schema = _preflight(churn, monkeypatch, str(fresh), *step)
    assert "from schema/schema.pbtxt, as no run has completed Transform yet" in made
    parameters = re.search(r"parameters.*?all variables are \S+ KiB", said)
    assert parameters and parameters[0] in made
    assert "The whole bar is what the step uses" in page and "Preflight of churn" in by_schema


def test_a_sweep_has_the_length_of_the_project_s_training(churn, churn_run, monkeypatch, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text('{"currency": "EUR", "chip_hour": {"v5p": 6.0}}', encoding="utf-8")
    said, page = _preflight(churn, monkeypatch, "config.yaml", "--sweep", f"--price={prices}")
    # Of the slices of one machine, only those with a price; four chips for five minutes.
    assert "The choice: v5p:2x2x1, 2.00 EUR: the cheapest" in said and "v5e" not in said
    trainer = yaml.safe_load((churn / "config.yaml").read_text("utf-8"))["trainer"]
    steps, rows = trainer["train_steps"], trainer["train_batch_size"]
    assert f"The training has {steps:,} steps of {rows:,} rows" in page


def test_the_chosen_slice_is_in_the_config_and_in_the_requests(
    churn, churn_run, monkeypatch, tmp_path
):
    prices, config = tmp_path / "prices.json", churn / "chosen.yaml"
    values = {"currency": "EUR", "chip_hour": {"v5e": 2.0}, "flex_start": {"v5e": 1.0}}
    prices.write_text(json.dumps(values), encoding="utf-8")
    text = (churn / "config.yaml").read_text(encoding="utf-8")
    config.write_text(text, encoding="utf-8")
    choose = ("--choose", "--tpu=v5e:2x2,v5e:2x4", f"--price={prices}")
    late = [*choose, "--deadline=4m"]
    said, _ = _preflight(churn, monkeypatch, "chosen.yaml", *late, exit_code=1)
    assert "No slice finishes within 4 min. The nearest is v5e:2x2, which takes 5 min" in said
    assert "chosen.yaml is unchanged" in said and config.read_text("utf-8") == text
    said, _ = _preflight(churn, monkeypatch, "chosen.yaml", *choose, "--batch_size=256,512")
    # Four chips for five minutes, at 1 EUR an hour.
    assert "The choice: v5e:2x2 flex-start, 0.33 EUR: the cheapest" in said
    assert "512 rows in a step, 128 on each core" in said
    before, after = (yaml.safe_load(each)["trainer"] for each in (text, config.read_text("utf-8")))
    rows = before["train_steps"] * before["train_batch_size"]
    assert after == {
        **before,
        "tpu": {"slice_name": "v5e:2x2", "flex_start": True},
        "train_batch_size": 512,
        "train_steps": math.ceil(rows / 512),
    }
    comments = [line for line in text.splitlines() if "#" in line]
    assert comments == [line for line in config.read_text("utf-8").splitlines() if "#" in line]
    to = "--root=gs://b/r --data=gs://b/d --image=r.example/i:1 --gcp-project=our-models --region=us-central1"
    for backend, holds in (
        ("kubeflow", ["gke-flex-start", '"cloud.google.com/gke-tpu-topology": "2x2"']),
        ("vertex", ['"strategy": "FLEX_START"', '"tpu_topology": "2x2"']),
    ):
        places = to.split() if backend == "vertex" else to.split()[:3]
        given = ["compile", f"--{backend}", "--config=chosen.yaml", "--dry-run", *places]
        printed = _command(*given, folder=churn)
        assert all(each in printed for each in [*holds, '"train_batch_size"'])


@pytest.mark.sweep
def test_tfx_s_command_line_runs_the_same_project(churn, churn_run, tmp_path):
    pushed = len(list((churn / "runs" / "serving").iterdir()))
    engine = ["--engine", "local"]
    path = [*engine, "--pipeline_path", "local_runner.py"]
    said = _run("tfx", "pipeline", "create", *path, folder=churn, home=tmp_path)
    assert 'Pipeline "churn" created successfully.' in said
    said = _run("tfx", "pipeline", "compile", *path, folder=churn, home=tmp_path)
    assert "Pipeline compiled successfully." in said
    # There is a model to compare with now, so the gate judges and Pusher pushes once more.
    _run("tfx", "run", "create", *engine, "--pipeline_name", "churn", folder=churn, home=tmp_path)
    assert len(list((churn / "runs" / "serving").iterdir())) == pushed + 1


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["csv", "tfrecord"])
def test_a_quantity_is_learned_from_either_kind_of_file(tmp_path, kind):
    import tensorflow as tf

    table = datasets.load_diabetes(as_frame=True).frame
    data = tmp_path / f"diabetes.{kind}"
    if kind == "csv":
        table.to_csv(data, index=False)
    else:
        with tf.io.TFRecordWriter(str(data)) as writer:
            for row in table.to_dict("records"):
                features = {
                    name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
                    for name, value in row.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    _command("new", "made", "--data", str(data), "--label", "target", folder=tmp_path)
    _command("run", "--plain", folder=tmp_path / "made")
    (report,) = (tmp_path / "made" / "runs" / "logs").glob(f"*/{REPORT}")
    found = RunReport.read(report)
    assert found.blessed is True and found.pushed is not None
    assert found.eval_metrics["r_squared"] > 0.2
    assert found.eval_metrics["r_squared"] == pytest.approx(
        1 - found.eval_metrics["average_loss"], abs=1e-5
    )

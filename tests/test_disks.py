"""Full disks, and folders where nobody may write: one line that names the file, and nothing half-written.

A disk is full here by RLIMIT_FSIZE, which any process may set for itself: each write beyond the limit fails, as
Python ignores the signal that goes with it.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from click.testing import CliRunner, Result
from tensorflow_serving.apis import prediction_log_pb2

from tests.bad_input import case, row
from tests.components.clusters.compiled import tiny
from tests.conftest import REPOSITORY
from tests.disks import full_disk
from tests.estimator import linear_model
from tests.preflight.reports import report
from tests.serving.exports import save_metagraphs
from tfx_tpu_trainer._support.file_systems import check_can_be_written
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    write_eval_metrics,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    LearningCurve,
    write_learning_curve,
)
from tfx_tpu_trainer.estimator import export, tpu
from tfx_tpu_trainer.preflight._report_files import write_html, write_json
from tfx_tpu_trainer.serving import (
    Check,
    ServingCheck,
    copy_metagraph,
    write_server_config,
    write_serving_check,
    write_warmup,
)
from tfx_tpu_trainer.workbench.cli.main import main

NOBODY = 65534
METRICS = EvalMetrics(overall={"loss": 0.5}, global_step=1)
PROGRAM = "import tensorflow as tf\nx = tf.placeholder(tf.float32)\n"

RECEIVER_FN = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 3])})

Write = Callable[[Path], object]


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """A user without rights: root ignores a folder's mode, all others are bound by it."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(NOBODY)
    except OSError as error:
        pytest.skip(f"this machine has no other users: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user reaches, which is not so of pytest's own."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    for path in (made, *filter(Path.is_dir, made.rglob("*"))):
        path.chmod(0o755)
    shutil.rmtree(made)


def training(folder: Path, **options: Any) -> tpu.TPUEstimator:
    return tpu.TPUEstimator(
        linear_model.model_fn_for(tpu),
        model_dir=str(folder / "model_dir"),
        train_batch_size=5,
        config=tpu.RunConfig(save_summary_steps=None, log_step_count_steps=None, **options),
        use_tpu=False,
    )


def train(folder: Path, **options: Any) -> None:
    training(folder, **options).train(linear_model.input_fn, steps=1)


def export_model(folder: Path) -> None:
    training(folder).export_saved_model(str(folder / "versions"), RECEIVER_FN)


def add_model(folder: Path) -> None:
    save_metagraphs(str(folder / "model"), ["serve"])


def copy_model(folder: Path) -> None:
    copy_metagraph(str(folder / "model"), str(folder / "copy"))


def write_requests(folder: Path) -> None:
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.name = "model"
    write_warmup(str(folder), [log])


def add_program(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)


def fix_program(folder: Path) -> Result:
    return CliRunner().invoke(main, ["doctor", str(folder / "program.py"), "--fix"])


def start_pipeline(folder: Path) -> Result:
    return CliRunner().invoke(main, ["run", "--pipeline", "taxi", "--root", str(folder)])


def nothing(folder: Path) -> None:
    del folder


# The file to write, what exists before, the writer, and its message; WHY stands for the system's reason and the fix.
WRITERS: list[tuple[str, Write, Write, tuple[str, ...]]] = [
    (
        "`eval_metrics.json`",
        nothing,
        lambda to: write_eval_metrics(str(to), METRICS),
        ("WHY: '", "/eval_metrics.json'"),
    ),
    (
        "`learning_curve.json`",
        nothing,
        lambda to: write_learning_curve(str(to), LearningCurve()),
        ("WHY: '", "/learning_curve.json'"),
    ),
    (
        "a ModelEvaluation",
        nothing,
        lambda to: write_model_evaluation(str(to / "evaluation"), METRICS),
        ("WHY: '", "/evaluation'"),
    ),
    (
        "`serving_check.json`",
        nothing,
        lambda to: write_serving_check(str(to), ServingCheck((Check("a", "passed", ""),))),
        ("WHY: '", "/serving_check.json'"),
    ),
    (
        "the servers' configuration",
        nothing,
        lambda to: write_server_config(str(to)),
        ("WHY: '", "/serving_config'"),
    ),
    (
        "warm-up requests",
        nothing,
        write_requests,
        ("WHY: '", "/assets.extra/tf_serving_warmup_requests'"),
    ),
    ("a copy of one metagraph", add_model, copy_model, ("WHY: '", "/copy'")),
    (
        "a preflight report",
        nothing,
        lambda to: write_json(report(), str(to / "report.json")),
        ("The report can't be written to ", "/report.json: WHY"),
    ),
    (
        "a preflight page",
        nothing,
        lambda to: write_html(report(), str(to / "report.html")),
        ("The report can't be written to ", "/report.html: WHY"),
    ),
    (
        "a compiled pipeline",
        nothing,
        lambda to: tiny().write(to / "tiny.yaml"),
        ("output '", "/tiny.yaml' can't be written (WHY)"),
    ),
]


def refusals(given: str, why: str):
    return [
        case(
            "disks",
            f"{what} {given}",
            *(part.replace("WHY", why) for part in says),
            values=(prepare, write),
        )
        for what, prepare, write, says in WRITERS
    ]


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("prepare", "write"),
    refusals("on a full disk", "File too large; free some space on its disk"),
)
def test_on_a_full_disk_the_file_is_named_and_nothing_stays(tmp_path, prepare, write, refused):
    prepare(tmp_path)
    before = listing(tmp_path)
    with refused(OSError), full_disk():
        write(tmp_path)
    assert listing(tmp_path) == before
    assert not [path for path in tmp_path.rglob("*") if ".tmp-" in path.name]
    # That it was the disk shows where there is room again.
    write(tmp_path)
    assert listing(tmp_path) != before


@pytest.mark.parametrize(
    ("prepare", "write"),
    refusals(
        "where the user may not write",
        "Permission denied; give this user write access, or choose another path",
    ),
)
def test_where_nobody_may_write_the_file_is_named(folder, prepare, write, refused):
    prepare(folder)
    before = listing(folder)
    folder.chmod(0o555)
    with refused(OSError), nobody():
        write(folder)
    assert listing(folder) == before


NO_EXPORT = (
    "Can't export to ",
    "/versions: ",
    "Nothing remains of this version. The folder must be writable",
)


@row("disks", "an exported model on a full disk", *NO_EXPORT)
def test_an_export_on_a_full_disk_leaves_nothing(tmp_path, refused):
    train(tmp_path)
    with refused(RuntimeError), full_disk():
        export_model(tmp_path)
    assert os.listdir(tmp_path / "versions") == []
    export_model(tmp_path)


@row("disks", "an exported model where the user may not write", *NO_EXPORT)
def test_an_export_where_nobody_may_write_leaves_nothing(folder, refused):
    train(folder)
    before = listing(folder)
    # Once as a user who may, so all modules are imported that the other may not read.
    export_model(folder)
    shutil.rmtree(folder / "versions")
    folder.chmod(0o555)
    with refused(RuntimeError), nobody():
        export_model(folder)
    assert listing(folder) == before


@pytest.mark.parametrize(
    "options",
    [
        case(
            "disks",
            f"a training on a full disk, whose checkpoint {given}",
            "A checkpoint can't be written to ",
            "/model_dir (File too large): free space on its disk, or give a model_dir that this user "
            "may",
            "Training will resume from the last complete checkpoint",
            values=options,
        )
        for given, options in (
            ("begins with the graph", {}),
            ("has the variables alone", {"checkpoint_save_graph_def": False}),
        )
    ],
)
def test_a_training_on_a_full_disk_goes_on_from_its_last_checkpoint(tmp_path, options, refused):
    train(tmp_path, **options)
    before = os.listdir(tmp_path / "model_dir")
    with refused(tf.errors.ResourceExhaustedError), full_disk():
        train(tmp_path, **options)
    there = set(os.listdir(tmp_path / "model_dir")).difference(before)
    assert not [name for name in there if "tfevents" not in name]
    estimator = training(tmp_path)
    assert estimator.latest_checkpoint().endswith("model.ckpt-1")
    train(tmp_path)
    assert estimator.get_variable_value("global_step") == 2


@row(
    "disks",
    "a training where the user may not write",
    "model_dir '",
    "/model_dir' can't be written: ",
    "Permission denied. Give another model_dir, or permission to write to this one",
)
def test_a_training_where_nobody_may_write_is_refused(folder, refused):
    train(folder)
    before = listing(folder)
    (folder / "model_dir").chmod(0o555)
    with refused(tf.errors.PermissionDeniedError), nobody():
        train(folder)
    assert listing(folder) == before


@row(
    "disks",
    "`doctor --fix` on a full disk",
    "/program.py: File too large; free some space on its disk; it was not changed",
)
def test_a_program_is_fixed_whole_or_not_at_all(tmp_path, refused):
    add_program(tmp_path)
    with full_disk():
        ended = fix_program(tmp_path)
    refused.output(ended)
    assert (tmp_path / "program.py").read_text() == PROGRAM
    assert listing(tmp_path) == ["program.py"]


@row(
    "disks",
    "`doctor --fix` where the user may not write",
    "/program.py: Permission denied; give this user write access, or choose another path; it was not changed",
)
def test_a_program_that_nobody_may_write_is_named(folder, refused):
    add_program(folder)
    folder.chmod(0o555)
    with nobody():
        ended = fix_program(folder)
    refused.output(ended)
    assert (folder / "program.py").read_text() == PROGRAM


def test_a_device_that_everybody_may_write_to_needs_no_folder_of_ones_own():
    with nobody():
        check_can_be_written("--html", os.devnull)


@row(
    "disks",
    "a device that the user may not write to",
    "--html='",
    "/pipe' can't be written: you may not write to it; give another file.",
)
def test_a_device_that_nobody_may_write_to_is_named(folder, refused):
    os.mkfifo(folder / "pipe", 0o400)
    with refused(ValueError), nobody():
        check_can_be_written("--html", folder / "pipe")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        case(
            "disks",
            f"{given} on a full disk",
            "Error: the output can't be written (No space left on device); free some disk space, or redirect it",
            values=(words,),
        )
        for given, words in (
            (
                "what the doctor prints as JSON,",
                [
                    "-m",
                    "tfx_tpu_trainer.workbench.cli.main",
                    "doctor",
                    "tests/compat/doctor/corpus",
                    "--json",
                ],
            ),
            (
                "what the doctor prints,",
                [
                    "-m",
                    "tfx_tpu_trainer.workbench.cli.main",
                    "doctor",
                    "tests/compat/doctor/corpus",
                ],
            ),
            (
                "a manifest",
                ["kubeflow/manifests.py", "multi-worker", "--name=a", "--image=b:1", "python"],
            ),
        )
    ],
)
def test_output_that_has_no_room_is_one_line(words, refused):
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    refused.output(ended)
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "name", "mode"),
    [
        case("disks", f"`{command}` {given}", *says, values=(command, name, 0))
        for command, given, name, *says in (
            (
                "doctor",
                "of a file that the user may not read",
                "program.py",
                "/program.py: Permission denied.",
            ),
            (
                "doctor",
                "of a folder that the user may not list",
                "inner",
                "/inner: a folder that can't be listed.",
            ),
            (
                "inspect",
                "of a folder that the user may not list",
                "model",
                "/model",
                "Permission denied",
            ),
        )
    ],
)
def test_what_nobody_may_read_is_named(folder, command, name, mode, refused):
    add_program(folder)
    (folder / "inner").mkdir()
    add_model(folder)
    asked = folder / name if command == "inspect" else folder
    assert CliRunner().invoke(main, [command, str(asked)]).exit_code < 2
    (folder / name).chmod(mode)
    with nobody():
        ended = CliRunner().invoke(main, [command, str(asked)])
    (folder / name).chmod(0o755)
    refused.output(ended)


@row(
    "disks",
    "local runner: a root on a full disk",
    "error: root '",
    "' can't be written to: File too large; free some space on its disk (",
    "choose another with --root",
)
def test_a_pipeline_does_not_start_on_a_full_disk(tmp_path, refused):
    with full_disk():
        ended = start_pipeline(tmp_path)
    refused.output(ended)


@row(
    "disks",
    "local runner: a root where the user may not write",
    "error: root '",
    "/root' can't be written to (Permission denied); choose another with --root",
)
def test_a_pipeline_does_not_start_where_nobody_may_write(folder, refused):
    folder.chmod(0o555)
    with nobody():
        ended = start_pipeline(folder / "root")
    refused.output(ended)

"""The programs of docs/migration.md: each pair ends with the same numbers."""

import contextlib
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer import compat
from tfx_tpu_trainer.compat.doctor import Verdict, examine, repair

pytestmark = pytest.mark.matrix

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"```python\n(# \w+\.py)\n(.*?)```", TEXT, re.DOTALL))


def program(name: str) -> str:
    return PROGRAMS[f"# {name}.py"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs programs of the page as `python -m tfx_tpu_trainer.compat` would; gives their names."""
    # They name no folder for their models.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run_program(name: str, *, legacy: bool = False, **given: Any) -> dict[str, Any]:
        with compat.install() if legacy else contextlib.nullcontext():
            return _names_of(name, tmp_path, **given)

    return run_program


@pytest.fixture(scope="module")
def plain_after(tmp_path_factory):
    """The names of a program that two others are to end as."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("plain")))
        return _names_of("plain_after", Path(tempfile.tempdir))


def _names_of(name: str, folder: Path, **given: Any) -> dict[str, Any]:
    # From a file: tf.function reads the source.
    file = folder / f"{name}.py"
    file.write_text(program(name), encoding="utf-8")
    return runpy.run_path(str(file), init_globals=given, run_name="__main__")


def assert_same(one: dict[str, Any], other: dict[str, Any], *, keys: list[str]) -> None:
    assert {key: one[key] for key in keys} == pytest.approx(
        {key: other[key] for key in keys}, rel=1e-5
    )
    # Not the numbers of a model that has learned nothing.
    assert one["loss"] < 0.9


def test_the_page_has_these_programs():
    names = ["plain", "contrib", "queues", "keras", "native"]
    pairs = [f"# {name}_{time}.py" for name in names for time in ("before", "after")]
    assert list(PROGRAMS) == [*pairs[:8], "# tpu_strategy.py", *pairs[8:], "# fit_after.py"]


def test_a_plain_estimator(run, plain_after):
    before = run("plain_before", legacy=True)
    assert_same(before["result"], plain_after["result"], keys=["loss", "error", "global_step"])


def test_the_doctor_turns_contrib_into_ours(run, plain_after, monkeypatch):
    repaired = repair(program("contrib_before"))
    assert repaired.text == program("contrib_after")
    assert not [each for each in repaired.left if each.verdict is Verdict.EDIT]
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    on_two_cores = run("contrib_after")
    assert_same(
        on_two_cores["result"], plain_after["result"], keys=["loss", "error", "global_step"]
    )


def test_queues(run):
    before, after = run("queues_before", legacy=True), run("queues_after", legacy=True)
    assert before["result"]["global_step"] == after["result"]["global_step"] == 8
    keys = ["average_loss", "prediction/mean"]
    for key in keys:
        assert before["result"][key] == pytest.approx(after["result"][key], rel=1e-5)
    assert before["estimator"].get_variable_value("linear/linear_model/x/weights") == pytest.approx(
        after["estimator"].get_variable_value("linear/linear_model/x/weights"), rel=1e-5
    )
    told = {each.name for each in examine(program("queues_before")) if each.verdict is Verdict.EDIT}
    assert told == {"tf.compat.v1.train.slice_input_producer", "tf.compat.v1.train.batch"}
    assert not [each for each in examine(program("queues_after")) if each.verdict is Verdict.EDIT]


def test_keras_models(run):
    before, after = run("keras_before", legacy=True), run("keras_after")
    assert_same(before["result"], after["result"], keys=["loss", "mae", "global_step"])


# AutoGraph takes 15 seconds for Keras's own code, once a process.
@pytest.mark.sweep
def test_keras_models_and_fit(run):
    before, after = run("keras_after"), run("fit_after")
    assert_same(before["result"], after["result"], keys=["loss", "mae"])


def test_a_loop_of_one_s_own(run):
    before = run("native_before")
    after = run("native_after", CHECKPOINT=before["CHECKPOINT"])
    assert_same(before["result"], after["result"], keys=["loss", "error"])
    assert before["result"]["global_step"] == 10
    weights = before["estimator"].get_variable_value("weights")
    np.testing.assert_allclose(after["model"].weights.numpy(), weights, rtol=1e-5)
    x = tf.constant(before["X"])
    served = [
        tf.saved_model.load(each["exported"], tags=["serve"]).signatures["serving_default"](x=x)
        for each in (before, after)
    ]
    np.testing.assert_allclose(served[0]["prediction"], served[1]["prediction"], rtol=1e-5)


def test_the_stand_in_is_all_that_differs_from_a_tpu():
    strategy = program("tpu_strategy")
    compile(strategy, "tpu_strategy.py", "exec")
    assert "def make_strategy():" in strategy
    for name in ("native_after", "fit_after"):
        assert "def make_strategy():\n    return tf.distribute.MirroredStrategy(" in program(name)


def test_the_page_s_links_lead_somewhere():
    for target in re.findall(r"\]\(([\w.]+\.md)", TEXT):
        assert (PAGE.parent / target).exists()
    anchors = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= anchors

"""`tfx-tpu-trainer prove`: exit codes, the page and the JSON, and one program against the original itself."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.estimator.original import original_python as original_python
from tfx_tpu_trainer.workbench.cli.main import main

PROGRAM = Path(__file__).parents[1] / "prove" / "program.py"


@pytest.mark.matrix
@pytest.mark.parametrize(("cores", "words"), [(0, []), (2, ["--emulate", "2"])])
def test_a_program_does_the_same_under_the_original(original_python, tmp_path, cores, words):
    page, values = tmp_path / "proof.html", tmp_path / "proof.json"
    command = ["prove", "--original", original_python, *words]
    command += ["--html", str(page), "--json", str(values), str(PROGRAM), str(tmp_path), str(cores)]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 0, ended.output
    proof = json.loads(values.read_text(encoding="utf-8"))
    assert proof["verdict"] in ("equal", "equal up to rounding")
    assert (proof["first"], proof["unheld"], proof["steps"]) == (None, [], 4)
    assert proof["versions"][0] == "2.15.1"
    assert all(each["compared"] for each in proof["subjects"])
    assert proof["verdict"] in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py"], "can't open the program 'nowhere.py': no such file."),
        (
            ["--original", "nowhere", str(PROGRAM)],
            "Invalid value for '--original': File 'nowhere' does not exist.",
        ),
        (["--records", ".", str(PROGRAM)], "--records . exists already: name a new folder."),
    ],
)
def test_bad_words_end_in_one_message(words, says):
    ended = CliRunner().invoke(main, ["prove", *words])
    assert ended.exit_code == 2
    assert ended.output.endswith(f"Error: {says}\n")

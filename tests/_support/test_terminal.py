"""Tests that names and messages from elsewhere are printed as text, without terminal commands."""

import io
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.table import Table
from rich.text import Text
from tensorflow.core.protobuf import saved_model_pb2

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.terminal import PlainConsole, standard_output, text
from tfx_tpu_trainer.serving import Check, ServingCheck, write_serving_check
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.history.progress import LiveDisplay, PlainDisplay
from tfx_tpu_trainer.workbench.history.report import Failure, RunReport
from tfx_tpu_trainer.workbench.history.summary import print_summary
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State

# Red, a window's title with its bell, one column back, a bidirectional override and isolate, C1's CSI, DEL.
HOSTILE = "\x1b[31mred\x1b]0;title\x07\x08\u202egpj\u2066\x9b2J\x7f"
ESCAPED = r"\x1b[31mred\x1b]0;title\x07\x08\u202egpj\u2066\x9b2J\x7f"


def test_what_a_terminal_would_obey_is_written_out_and_all_else_is_as_it_was():
    assert printable(HOSTILE) == ESCAPED
    assert printable("a\udc80b") == r"a\udc80b"
    plain = "größe: 3 µs, 数据, 🙂, ✓\n\tindented"
    assert printable(plain) == plain


def _shown(renderable, **options):
    stream = io.StringIO()
    PlainConsole(file=stream, width=200, **options).print(renderable)
    return stream.getvalue()


def test_in_a_table_on_a_terminal_only_the_colours_that_were_asked_for_remain():
    table = Table("heading", title=HOSTILE)
    table.add_row(text(HOSTILE, style="bold"))
    table.add_row(Text(HOSTILE))
    # Rich drops a bell and a step back before they are seen.
    escaped = ESCAPED.replace(r"\x07\x08", "")
    shown = _shown(table, force_terminal=True, color_system="standard")
    assert escaped in shown and ESCAPED in shown
    assert "\x1b[1m" in shown
    for sequence in ("\x1b[31m", "\x1b]", "\u202e", "\x9b"):
        assert sequence not in shown


def test_square_brackets_and_colons_of_a_name_are_no_markup():
    assert _shown("[red]a[/red] :smile:") == "[red]a[/red] :smile:\n"


def _is_clean(text):
    return not any(each in text for each in ("\x1b", "\x07", "\u202e", "\u2066", "\x9b", "\x7f"))


def _write_saved_model(folder):
    model = saved_model_pb2.SavedModel()
    graph = model.meta_graphs.add()
    graph.meta_info_def.tags.append(HOSTILE)
    signature = graph.signature_def[HOSTILE]
    signature.inputs[HOSTILE].dtype = signature.outputs[HOSTILE].dtype = 1
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())


def test_inspect_shows_tags_signatures_files_and_a_check_that_are_hostile(tmp_path):
    _write_saved_model(tmp_path / "Format-Serving")
    check = Check(HOSTILE, "failed", HOSTILE)
    write_serving_check(str(tmp_path), ServingCheck((check,)))
    ended = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    assert _is_clean(ended.output)
    # The tag, the signature, its input and its output, the check's name and detail.
    assert ended.output.count(r"\x1b[31mred") == 6


def test_inspect_names_a_folder_that_is_not_there_without_its_colours(tmp_path):
    ended = CliRunner().invoke(main, ["inspect", str(tmp_path / HOSTILE)])
    assert ended.exit_code == 1
    assert _is_clean(ended.output) and ESCAPED in ended.output


def test_the_doctor_shows_file_names_findings_and_errors_without_their_colours(tmp_path):
    (tmp_path / f"{HOSTILE}.py").write_text("import tensorflow as tf\ntf.contrib.layers.flatten\n")
    (tmp_path / f"broken{HOSTILE}.py").write_text("import tensorflow as tf\nx = tf.contrib(")
    ended = CliRunner().invoke(main, ["doctor", str(tmp_path)])
    assert ended.exit_code == 2
    assert _is_clean(ended.output)
    assert f"broken{ESCAPED}.py" in ended.stderr and f"{ESCAPED}.py" in ended.stdout


def test_a_diff_to_a_pipe_is_for_patch_and_stays_as_it_is(tmp_path):
    (tmp_path / "a.py").write_text(
        "import tensorflow as tf\n# \x1b[31m\n# spaces  \nf = tf.contrib.layers.flatten\n"
    )
    ended = CliRunner().invoke(main, ["doctor", "--diff", str(tmp_path)])
    assert "\n # \x1b[31m\n # spaces  \n" in ended.output


def test_a_table_in_a_pipe_ends_its_lines_with_their_last_words(capsys):
    table = Table("name", "value", box=None, width=100)
    table.add_row("loss", "0.5")
    table.add_row("a name of some length", "")
    padded = io.StringIO()
    PlainConsole(file=padded, width=140).print(table)
    assert " \n" in padded.getvalue()
    console = standard_output(width=140)
    console.print(table)
    console.print("no end  ", end="")
    stripped = [line.rstrip() for line in padded.getvalue().splitlines()]
    assert capsys.readouterr().out.splitlines() == [*stripped, "no end  "]


def _status():
    return NodeStatus(node=HOSTILE, state=State.FAILED, seconds=1.0, execution_id=3, error=HOSTILE)


@pytest.mark.parametrize("display", [LiveDisplay, PlainDisplay])
def test_a_run_is_shown_without_what_its_names_would_do(display):
    stream = io.StringIO()
    terminal = display is LiveDisplay
    console = PlainConsole(file=stream, width=200, force_terminal=terminal, color_system=None)
    with display(console) as shown:
        shown.update([_status()], f"note {HOSTILE}")
    assert r"\x1b[31mred" in stream.getvalue()
    assert all(each not in stream.getvalue() for each in ("\x1b[31m", "\x1b]0;", "\u202e"))


def test_so_is_its_summary(tmp_path):
    stream = io.StringIO()
    report = RunReport(failure=Failure(HOSTILE, HOSTILE), verdict=HOSTILE, model_run=HOSTILE)
    print_summary(
        PlainConsole(file=stream, width=200),
        statuses=[_status()],
        report=report,
        metadata_file=HOSTILE,
        log=tmp_path / HOSTILE,
    )
    assert _is_clean(stream.getvalue()) and r"\x1b[31mred" in stream.getvalue()


def test_the_local_runner_names_a_setting_without_its_colours():
    ended = CliRunner().invoke(main, ["run", "--pipeline", "taxi", "--set", f"{HOSTILE}=1"])
    assert ended.exit_code == 2
    assert _is_clean(ended.output) and r"\x1b[31mred" in ended.output


def test_compat_names_a_program_without_its_colours():
    command = [sys.executable, "-m", "tfx_tpu_trainer.compat", "\x1b[31m\u202e.py"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert ended.returncode and _is_clean(ended.stderr), json.dumps(ended.stderr)


def test_what_an_encoding_lacks_is_written_out():
    command = "from tfx_tpu_trainer.workbench.cli.main import main; import click;"
    command += (
        "main.add_command(click.command('tick')(lambda: click.echo('\u2713 \xfc'))); main(['tick'])"
    )
    words = [sys.executable, "-c", command]
    ended = subprocess.run(
        words, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"}
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"\\u2713 \xfc\n", b"")


def test_a_command_whose_output_is_closed_does_its_work(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("import tensorflow as tf\nx = tf.placeholder(tf.float32)\n")
    words = [sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main", "doctor", str(program)]
    closed = ["sh", "-c", '"$@" >&-', "sh", *words]
    ended = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")

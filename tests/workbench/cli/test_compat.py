"""`tfx-tpu-trainer compat`: the program's own words are left alone."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

assert "tfx_tpu_trainer.workbench.cli.main" not in sys.modules
import tensorflow as tf

print(sys.argv[1:], tf.estimator.Estimator.__module__.partition(".")[0], __name__)
sys.exit(3)
"""


def test_a_program_runs_with_its_words_and_exit_code(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main", "compat"),
            *("--emulate", "2", str(program), "--help", "-x", "1"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == "['--help', '-x', '1'] tfx_tpu_trainer __main__\n"

"""Files found, read and written; what is no Python; edits of a text; aliases of names."""

import collections
import os
import stat
import sys

import pytest

from tfx_tpu_trainer.compat.doctor import (
    NotPythonError,
    Source,
    UnreadableError,
    Verdict,
    examine,
    python_files,
    read_source,
    repair,
    write_source,
)
from tfx_tpu_trainer.compat.doctor._findings import TextEdit, apply_edits


def test_a_folder_s_files_are_those_of_its_programs(tmp_path):
    for name in ("b.py", "a/c.py", ".hidden/d.py", "env/pyvenv.cfg", "env/e.py", "a/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    # As macOS and Emacs leave them.
    (tmp_path / "._b.py").write_bytes(b"\0\5\x16\7")
    (tmp_path / ".#b.py").symlink_to("user@host.1:2")
    assert [path.relative_to(tmp_path).as_posix() for path in python_files(tmp_path)] == [
        "a/c.py",
        "b.py",
    ]


def test_paths_without_a_program_are_told(tmp_path):
    with pytest.raises(UnreadableError, match=r"nowhere': no such file or folder. Give a .py file"):
        python_files(tmp_path / "nowhere")
    with pytest.raises(UnreadableError, match=r"no \.py file"):
        python_files(tmp_path)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(
        UnreadableError, match=r"binary.py: not read as text: invalid or missing encoding decl"
    ):
        read_source(tmp_path / "binary.py")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_file_keeps_its_encoding_line_ends_mode_and_link(tmp_path, encoding):
    head = "# -*- coding: latin-1 -*-\r\n" if encoding == "latin-1" else ""
    text = f"{head}# Grüße\r\nimport tensorflow as tf\r\nx = tf.contrib.tpu.TPUConfig\r\n"
    file, link = tmp_path / "program.py", tmp_path / "link.py"
    file.write_bytes(text.encode(encoding))
    file.chmod(0o750)
    link.symlink_to(file)
    source = read_source(link)
    assert source.text == text
    write_source(Source(link, repair(source.text).text, source.encoding))
    ours = "from tfx_tpu_trainer.estimator import tpu"
    changed = text.replace("tensorflow as tf", f"tensorflow.compat.v1 as tf\r\n{ours}")
    changed = changed.replace("tf.contrib.tpu", "tpu")
    assert file.read_bytes() == changed.encode(encoding)
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link.py", "program.py"]


@pytest.mark.parametrize(
    ("text", "line"),
    [("import tensorflow\n\nprint 'python 2'\n", 3), ("import tensorflow\nx = (\n", 2)],
)
def test_what_is_no_python_3_is_told_with_its_line(text, line):
    with pytest.raises(NotPythonError, match=rf"line {line}.*2to3"):
        examine(text)


def test_a_program_of_something_else_is_not_parsed():
    assert examine("print 'hello'") == []


def test_edits_reach_only_what_they_name():
    edits = [
        TextEdit(0, 1, "x"),
        TextEdit(3, 5, "yz"),
        TextEdit(3, 3, "+"),
        TextEdit(3, 4, "inner"),
    ]
    # ü has two bytes.
    assert apply_edits("aübcd", edits) == "xü+yzd"
    assert apply_edits("abc", []) == "abc"


def _edits(text: str) -> list[tuple[int, str, str | None]]:
    return [
        (each.line, each.name, each.edit) for each in examine(text) if each.verdict is Verdict.EDIT
    ]


def test_names_are_seen_through_imports_and_aliases():
    text = (
        "def make():\n"
        "    import tensorflow.contrib.tpu as t\n"
        "    return t.TPUConfig()\n"
        "import tensorflow as something\n"
        "contrib = something.contrib\n"
        "def spec(mode, tf):\n"
        "    tf.contrib.layers.flatten(mode)\n"  # a parameter of that name, not TensorFlow
        "    return contrib.tpu.TPUEstimatorSpec(mode, tpu=1)\n"
    )
    found = _edits(text)
    assert [(line, name) for line, name, _ in found] == [
        (2, "tf.contrib.tpu"),
        (4, "import tensorflow as something"),
        (5, "tf.contrib"),
        (8, "tf.contrib.tpu.TPUEstimatorSpec"),
    ]
    repaired = repair(text).text
    assert "    from tfx_tpu_trainer.estimator import tpu as t\n" in repaired
    assert "return tpu.TPUEstimatorSpec(mode, tpu=1)" in repaired
    assert "contrib = " not in repaired


def test_a_new_import_takes_a_name_that_is_free():
    text = "import tensorflow as tf\ntpu = 3\nx = tf.contrib.tpu.TPUConfig(tpu)\n"
    assert repair(text).text == (
        "import tensorflow.compat.v1 as tf\n"
        "from tfx_tpu_trainer.estimator import tpu as tpu_estimators\n"
        "tpu = 3\n"
        "x = tpu_estimators.TPUConfig(tpu)\n"
    )


def test_an_import_of_several_names_keeps_those_that_stay():
    text = (
        "try:\n"
        "    from tensorflow import flags, data, app as application\n"
        "finally:\n"
        "    pass\n"
        "from tensorflow.contrib.tpu import (\n"
        "    TPUConfig,  # the loop\n"
        "    TPUEstimator as Est,\n"
        ")\n"
    )
    assert repair(text).text == (
        "try:\n"
        "    from tensorflow.compat.v1 import flags, app as application\n"
        "    from tensorflow import data\n"
        "finally:\n"
        "    pass\n"
        "from tfx_tpu_trainer.estimator.tpu import (\n"
        "    TPUConfig,  # the loop\n"
        "    TPUEstimator as Est,\n"
        ")\n"
    )


def test_calls_that_a_rewriter_does_not_know_are_left_to_people():
    text = (
        "import tensorflow.compat.v1 as tf\n"
        "tf.contrib.summary.scalar('a', 1, 'family')\n"
        "tf.contrib.summary.scalar(*arguments)\n"
        "apply = tf.contrib.data.batch_and_drop_remainder(3)\n"
    )
    findings = examine(text)
    assert [each.line for each in findings] == [2, 4]
    assert findings[0].also_lines == (3,)
    assert not any(each.fixable for each in findings)


def test_names_of_a_guarded_import_are_left_to_it():
    text = (
        "import tensorflow.compat.v1 as tf\n"
        "try:\n    from tensorflow.contrib.tpu.python.tpu import tpu_config\n"
        "except ImportError:\n    tpu_config = None\n"
        "x = tpu_config.InputPipelineConfig.BROADCAST\ny = tf.contrib.tpu.TPUConfig\n"
    )
    repaired = repair(text)
    assert not any(each.fixable for each in repaired.left)
    assert repaired.text.endswith(
        "x = tpu_config.InputPipelineConfig.BROADCAST\ny = tpu.TPUConfig\n"
    )


def test_of_guarded_imports_the_one_that_works_today_counts():
    text = (
        "try:\n"
        "    from tensorflow.compat.v1.estimator import tpu\n"
        "except ImportError:\n"
        "    from tensorflow.contrib import tpu\n"
        "config = tpu.TPUConfig()\n"
    )
    assert [(each.line, each.verdict) for each in examine(text)] == [
        (4, Verdict.NOTE),
        (5, Verdict.WORKS),
    ]
    assert repair(text).text == text


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ('params["batch_size"]', True),
        ('params.get("batch_size", 8)', True),
        ("params.batch_size", True),
        ("make(params)", True),
        ('params["rate"]', False),
        ("params.rate", False),
        ("8  # params['batch_size']", False),
    ],
)
def test_an_input_function_asks_params_for_its_batch_size(body, asks):
    text = (
        "from tfx_tpu_trainer.estimator import tpu\n"
        f"def input_fn(params):\n    return {body}\n"
        "tpu.TPUEstimator(model_fn, config=config, use_tpu=False)\n"
    )
    assert (_edits(text) == []) is asks


def test_the_edit_of_the_import_may_be_all_that_a_name_needs():
    text = (
        "import tensorflow as tf\n"
        "x = tf.placeholder\n"
        "parameters = tf.tpu.experimental.AdamParameters(0.1)\n"
        "input_fn = tf.estimator.inputs.numpy_input_fn\n"
    )
    assert [(each.line, each.verdict) for each in examine(text)] == [
        (1, Verdict.EDIT),
        (3, Verdict.WORKS),
        (4, Verdict.WORKS),
    ]
    # Without it each gets its own.
    text = text.replace("tf.placeholder", "tf.optimizers")
    assert [edit for _, _, edit in _edits(text)] == [
        "tf.compat.v1.tpu.experimental.AdamParameters",
        "tf.compat.v1.estimator.inputs.numpy_input_fn",
    ]


@pytest.mark.parametrize(
    ("program", "version"),
    [
        ("import tensorflow as tf\nx = tf.placeholder(tf.float32)\n", 1),
        ("from tensorflow.contrib import layers\nlayers.flatten\n", 1),
        ("import tensorflow.compat.v1 as tf\nfrom tensorflow.contrib import layers\n", 1),
        ("import tensorflow as tf\nx = tf.optimizers.Adam()\n", 2),
        ("import tensorflow as tf\ntf.optimizers.Adam\ntf.contrib.layers.flatten\n", 2),
        ("import tensorflow as tf\nx = tf.constant(1)\n", None),
        ("import tensorflow.compat.v1 as tf\nx = tf.placeholder(tf.float32)\n", None),
        ("x = 1\n", None),
    ],
)
def test_it_is_known_which_tensorflow_a_program_is_for(program, version):
    assert repair(program).tensorflow == version


V1 = "import tensorflow.compat.v1 as tf\n"


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (f"{V1}def f():\n    global tf\n    tf = None\ntf.contrib.nccl\n", [5]),
        ("def f():\n    global tf\n    import tensorflow.compat.v1 as tf\ntf.contrib.nccl\n", [4]),
        (f"{V1}[tf.contrib.nccl for tf in\n tf.contrib.nccl]\n", [3]),
        (f"{V1}f = lambda tf: tf.contrib.nccl\n", []),
        (f"class A:\n    {V1}    def f(self): tf.contrib.nccl\n", []),
        (f"{V1}try:\n    pass\nexcept E as tf: tf.contrib.nccl\nexcept F as e:\n    e(tf)\n", [4]),
        (f"{V1}async def f(tf=tf.contrib.nccl): await tf.contrib.nccl\n", [2]),
        (f'{V1}x = f"""\n{{tf.contrib.nccl}}"""\ntf.contrib.nccl\n', [3, 4]),
    ],
)
def test_names_are_looked_up_in_their_scope(program, lines):
    found = [each for each in examine(program) if each.verdict is Verdict.EDIT]
    assert sorted({line for each in found for line in (each.line, *each.also_lines)}) == lines


def test_a_name_in_a_string_is_edited_where_it_stands():
    text = "import tensorflow as tf\nx = f'{tf.contrib.tpu.TPUConfig} {tf.VERSION}'\n"
    assert repair(text).text.splitlines()[-1] == "x = f'{tpu.TPUConfig} {tf.VERSION}'"


def test_what_stands_deep_in_a_sum_is_found():
    text = f"{V1}x = tf.contrib.nccl{' + 1' * 800}\n"
    assert [line for line, _, _ in _edits(text)] == [2]
    with pytest.raises(NotPythonError, match="line 2"):
        examine(f"{V1}x = {'(' * 300}{')' * 300}\n")
    with pytest.raises(NotPythonError, match=r"line 2.*null"):
        examine(f"{V1}\0")


def _calls_to_repair(functions: int) -> int:
    """Repairs a program of so many functions, and returns how many calls that took."""
    body = "".join(
        f"def f{number}(features):\n"
        f"    with tf.variable_scope('s{number}'):\n"
        "        x = tf.contrib.layers.flatten(features['x'])\n"
        f"        return tf.train.AdamOptimizer({number}).minimize(tf.reduce_sum(x))\n"
        for number in range(functions)
    )
    calls = collections.Counter[str]()
    sys.setprofile(lambda _, event, __: calls.update([event]))
    try:
        repaired = repair(f"import tensorflow as tf\n{body}")
    finally:
        sys.setprofile(None)
    assert repaired.text.count(" contrib.layers.flatten") == functions
    return calls["call"]


def test_four_times_the_lines_take_four_times_the_calls():
    assert _calls_to_repair(120) < 4.2 * _calls_to_repair(30)


def test_another_name_for_an_imported_module_stays():
    text = (
        "import tensorflow.compat.v1 as tf\n"
        "from tensorflow.contrib import slim as contrib_slim\n"
        "slim = contrib_slim\n"
        "slim.conv2d(x, 1, 2)\n"
        "slim.no_such_name\n"
        "modules = [contrib_slim]\n"
    )
    repaired = repair(text)
    assert repaired.text == text.replace("tensorflow.contrib", "tfx_tpu_trainer.compat.contrib")
    assert [each.line for each in repaired.left] == [5]
    assert [each.line for each in examine(text) if not each.fixable] == [5]


V1_BY_HAND = "    tf = tf.compat.v1\n"
TAKEN = [
    "tf.__version__ >= '2.0'",
    "tf.VERSION.startswith('2')",
    "tf.version.VERSION[0] == '2'",
    "int(tf.__version__[0]) > 1",
    "int(tf.__version__.split('.')[0]) >= 2",
    "LooseVersion(tf.__version__) >= LooseVersion('2.0.0')",
    "version.parse(tf.__version__) > version.parse('1.15')",
    "not tf.__version__.startswith('1.')",
    "tf.__version__ > '2' and not tf.__version__.startswith('1')",
    "tf.__version__[:1] in ('2', '3')",
    "FLAGS.force or '2.' in tf.__version__",
    "IS_TF2",
]
OTHERS = ["FLAGS.old", "tf.__version__ == version_of(FLAGS)", "hasattr(tf, 'compat')"]


def _program(test: str, then: str, otherwise: str = "    pass\n") -> str:
    return (
        "import tensorflow as tf\n"
        "IS_TF2 = tf.__version__.startswith('2.')\n"
        f"if {test}:\n{then}else:\n{otherwise}"
        "x = tf.placeholder(tf.float32)\n"
    )


@pytest.mark.parametrize("test", [*TAKEN, *OTHERS])
def test_tf_that_becomes_compat_v1_is_compat_v1(test):
    program = _program(test, V1_BY_HAND)
    assert examine(program) == []
    # What is written is of compat.v1, whose summaries are others.
    program += "y = tf.contrib.summary.all_summary_ops()\nz = tf.contrib.eager.py_func\n"
    repaired = repair(program)
    assert repaired.text.startswith("import tensorflow as tf\nIS_TF2")
    assert repaired.text.endswith("y = tf.summary.all_v2_summary_ops()\nz = tf.py_function\n")


@pytest.mark.parametrize("test", TAKEN)
def test_a_branch_that_does_not_run_today_is_not_looked_at(test):
    contrib = "    from tensorflow.contrib import tpu\n    tf.contrib.nccl\n"
    assert examine(_program(test, V1_BY_HAND, contrib)) == []
    # And the other way round, the imports and uses of it are.
    found = [each.name for each in examine(_program(f"not ({test})", V1_BY_HAND, contrib))]
    assert found == ["import tensorflow as tf", "tf.contrib.tpu", "tf.contrib.nccl"]


@pytest.mark.parametrize("test", OTHERS)
def test_a_branch_that_something_else_decides_is_looked_at(test):
    contrib = "    tf.contrib.nccl\n"
    found = examine(_program(test, "    pass\n", contrib))
    assert [each.name for each in found] == ["import tensorflow as tf", "tf.contrib.nccl"]


@pytest.mark.parametrize(
    "program",
    [
        (
            "try:\n    import tensorflow.compat.v1 as tf\n    tf.disable_v2_behavior()\n"
            "except ImportError:\n    import tensorflow as tf\n"
        ),
        (
            "try:\n    import tensorflow as tf\n    tf.placeholder\n"
            "except AttributeError:\n    import tensorflow.compat.v1 as tf\n"
        ),
        "import tensorflow as tf\ntry:\n    tf = tf.compat.v1\nexcept AttributeError:\n    pass\n",
        "import tensorflow as tf\ntf = tf.compat.v1 if tf.__version__ > '2' else tf\n",
    ],
)
def test_tf_by_way_of_an_exception_is_the_one_that_is_there(program):
    assert examine(f"{program}x = tf.placeholder(tf.float32)\n") == []


def test_version_of_another_package_decides_nothing():
    program = (
        "import torch\nimport tensorflow.compat.v1 as tf\n"
        "if torch.__version__ < '2':\n    tf.contrib.nccl\n"
    )
    assert [each.verdict for each in examine(program)] == [Verdict.EDIT]

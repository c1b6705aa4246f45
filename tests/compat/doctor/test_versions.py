"""Programs for both versions of TensorFlow: what their tests of the version come to today."""

from __future__ import annotations

import pytest

from tfx_tpu_trainer.compat.doctor import Verdict, examine, repair

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

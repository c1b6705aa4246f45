"""What of TensorFlow 1's time fails today without an old name of tf: sizes, NumPy's types, Keras 2, arguments."""

import collections
import collections.abc

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.compat.doctor import Verdict, examine, repair
from tfx_tpu_trainer.compat.doctor.checks.older_versions import _ABSTRACT
from tfx_tpu_trainer.estimator import tpu

HEAD = "import numpy as np\nimport tensorflow.compat.v1 as tf\n"
DIMENSION = "tf.compat.dimension_value"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x.shape[1].value", f"{DIMENSION}(x.shape[1])"),
        ("x.get_shape()[-1].value", f"{DIMENSION}(x.get_shape()[-1])"),
        ("(x + 1).shape[0].value", f"{DIMENSION}((x + 1).shape[0])"),
        ("x.get_shape().with_rank(2)[1].value", f"{DIMENSION}(x.get_shape().with_rank(2)[1])"),
        ("my_shape[1].value", f"{DIMENSION}(my_shape[1])"),
        ("sizes[1].value", f"{DIMENSION}(sizes[1])"),
        # Dimensions in both versions, and no sizes at all.
        ("x.shape.dims[1].value", "x.shape.dims[1].value"),
        ("x.shape.as_list()[1]", "x.shape.as_list()[1]"),
        ("events[0].value", "events[0].value"),
    ],
)
def test_a_size_is_written_as_both_kinds_of_shapes_have_it(old, new):
    text = f"{HEAD}def f(x, events, my_shape):\n    sizes = x.get_shape()\n    return {old}\n"
    repaired = repair(text)
    assert repaired.text == text.replace(f"return {old}", f"return {new}")
    assert repaired.left == ()

    class Event:
        value = 7

    names: dict[str, object] = {}
    exec(repaired.text, names)
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 3])
        value = names["f"](x, [Event], x.shape)  # type: ignore[operator]
    assert value == (7 if "events" in old else None if "[0]" in old else 3)


@pytest.mark.parametrize("switch", ["disable_v2_behavior", "disable_v2_tensorshape"])
def test_sizes_are_fine_where_the_program_switches_shapes(switch):
    assert examine(f"{HEAD}tf.{switch}()\nx.shape[1].value\n") == []


def test_numpy_types_are_told_and_edited_without_tensorflow_too():
    text = "import numpy as np\nx = np.zeros([2], np.bool)\ny = np.asscalar(x[0] + 1)\n"
    assert [(each.line, each.name) for each in examine(text)] == [
        (2, "np.bool"),
        (3, "np.asscalar"),
    ]
    assert repair(text).text.splitlines()[1:] == [
        "x = np.zeros([2], bool)",
        "y = (x[0] + 1).item()",
    ]
    # Where a name of the program's own hides the type; and by another name of NumPy.
    text = "import numpy as numpy_lib\nimport tensorflow as tf\nobject = 3\nx = numpy_lib.object\n"
    assert repair(text).text.endswith("x = numpy_lib.object_\n")
    assert [each.fixable for each in examine("import numpy as np\nx = np.NINF\n")] == [False]
    assert examine("import numpy as np\nx = np.bool_, np.float32, np.int64, np.inf\n") == []


def test_keras_2_is_told_once_with_the_variable_and_the_command():
    text = (
        f"{HEAD}x = tf.layers.dense(y, 3)\nz = tf.layers.dense(x, 3)\n"
        "cell = tf.nn.rnn_cell.LSTMCell(3)\no = tf.keras.optimizers.legacy.Adam()\n"
    )
    (note,) = examine(text)
    assert (note.line, note.also_lines, note.verdict) == (3, (4, 5, 6), Verdict.NOTE)
    assert note.says.startswith(
        "tf.layers.dense, tf.nn.rnn_cell.LSTMCell, tf.keras.optimizers.legacy.Adam are Keras 2's"
    )
    assert note.edit == (
        "python -m tfx_tpu_trainer.compat PROGRAM; or TF_USE_LEGACY_KERAS=1 python PROGRAM"
    )
    assert examine(f"import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n{text}") == []
    assert examine(f"{HEAD}x = tf.keras.layers.Dense(3)\ny = tf.nn.dynamic_rnn\n") == []


@pytest.mark.parametrize(
    "ours",
    [
        "from tfx_tpu_trainer import estimator",
        "from tfx_tpu_trainer.estimator import tpu",
        "import tfx_tpu_trainer.estimator as tfe",
    ],
)
def test_our_estimators_choose_keras_2_where_they_are_imported_before_tf_keras(ours):
    use = "x = tf.compat.v1.layers.dense(y, 3)\n"
    tensorflow = "import tensorflow as tf\nfrom tensorflow.keras import layers"
    (found,) = examine(f"{tensorflow}\n{ours}\n{use}")
    assert (found.line, found.verdict, found.fixable) == (4, Verdict.EDIT, False)
    assert found.edit == (
        "import tfx_tpu_trainer.estimator before tensorflow.keras; "
        "or TF_USE_LEGACY_KERAS=1 python PROGRAM"
    )
    assert examine(f"{ours}\n{tensorflow}\n{use}") == []
    assert examine(f"import tensorflow as tf\n{ours}\n{use}") == []


@pytest.mark.parametrize("argument", ["eval_metric_ops", "scaffold", "training_chief_hooks"])
def test_arguments_that_a_tpu_estimator_spec_does_not_take(argument):
    text = f"{HEAD}tf.estimator.tpu.TPUEstimatorSpec('train', loss=0, {argument}=None)\n"
    found = [each for each in examine(text) if each.verdict is Verdict.EDIT]
    assert [each.name for each in found] == [f"TPUEstimatorSpec({argument}=...)"]
    with pytest.raises(TypeError, match=argument):
        tpu.TPUEstimatorSpec("train", loss=np.float32(0), **{argument: None})


@pytest.mark.parametrize(("has_both", "edits"), [(False, 1), (True, 0)])
def test_metrics_of_a_plain_spec_are_fine_beside_those_for_cores(has_both, edits):
    text = (
        f"{HEAD}def model_fn(features, labels, mode, params):\n"
        "    if params['use_tpu']:\n"
        f"        return tf.estimator.tpu.TPUEstimatorSpec(mode{', eval_metrics=m' * has_both})\n"
        "    return tf.estimator.EstimatorSpec(mode, eval_metric_ops=m)\n"
        "tf.estimator.tpu.TPUEstimator(model_fn, config=c, use_tpu=flag, train_batch_size=8)\n"
    )
    assert sum(each.verdict is Verdict.EDIT for each in examine(text)) == edits


@pytest.mark.parametrize("name", ["tf.keras.optimizers.Adam", "tf.keras.optimizers.legacy.SGD"])
def test_a_keras_optimizer_on_cores_is_told_and_not_wrapped(name):
    text = (
        f"{HEAD}def model_fn(features, labels, mode, params):\n    optimizer = {name}()\n"
        "    train_op = optimizer.apply_gradients(zip(gradients, variables))\n"
        "    return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)\n"
    )
    (found,) = [each for each in examine(text) if each.verdict is Verdict.EDIT]
    assert (found.line, found.fixable) == (5, False)
    assert "cross_replica_sum" in (found.edit or "")
    assert examine(text.replace("tpu.TPUEstimatorSpec", "EstimatorSpec"))[-1].verdict is (
        Verdict.WORKS
    )


def test_learning_rates_have_the_name_that_all_versions_know():
    text = f"{HEAD}from tensorflow.keras.optimizers import SGD\nx = tf.keras.optimizers.Adam(lr=0.1), SGD(lr=1)\n"
    assert repair(text).text.endswith("Adam(learning_rate=0.1), SGD(learning_rate=1)\n")
    assert examine(f"{HEAD}x = Adam(lr=0.1), tf.keras.optimizers.get('sgd')\n") == []


def test_sessions_of_keras_are_those_of_compat_v1():
    text = "import tensorflow as tf\ntf.keras.backend.get_session()\nx = tf.optimizers\n"
    assert "\ntf.compat.v1.keras.backend.get_session()\n" in repair(text).text
    text = "import tensorflow as tf\ntf.keras.backend.get_session()\nx = tf.placeholder\n"
    repaired = repair(text)
    assert repaired.text == text.replace("tensorflow as", "tensorflow.compat.v1 as")
    assert [each.verdict for each in repaired.left] == [Verdict.NOTE]


def test_private_modules_are_imported_from_where_they_went():
    text = (
        "from tensorflow.python.ops import control_flow_ops, array_ops\n"
        "from tensorflow.python.training import training_ops\n"
        "from tensorflow.python.framework.ops import Tensor, Graph\n"
        "from keras.layers.core import Dense\n"
        "from keras.engine import Layer\n"
        "x = control_flow_ops.cond(p, f, g), control_flow_ops.group(h)\n"
    )
    repaired = repair(text)
    assert repaired.text.splitlines() == [
        "import tensorflow.compat.v1 as tf",
        "from tensorflow.python.ops import control_flow_ops, array_ops",
        "from tensorflow.python.ops import gen_training_ops as training_ops",
        "from tensorflow import Tensor",
        "from tensorflow.python.framework.ops import Graph",
        "from keras.layers import Dense",
        "from keras.engine import Layer",
        "x = tf.cond(p, f, g), control_flow_ops.group(h)",
    ]


PROGRAM = """\
import collections
from collections import Sequence
import tensorflow as tf

found = [isinstance({}, collections.Mapping), isinstance(tf.constant(1), Sequence)]
kept = collections.OrderedDict()
"""


def test_all_that_moved_are_known():
    moved = {
        name
        for name in collections.abc.__all__
        if not hasattr(collections, name) and not name.startswith(("Async", "Await", "Corout"))
    }
    assert moved - {"ByteString", "Buffer"} == _ABSTRACT


def test_a_name_of_the_module_is_written_anew_and_an_imported_one_is_told():
    mapping, sequence = (each for each in examine(PROGRAM) if each.theme == "python 2")
    assert (mapping.line, mapping.name, mapping.fixable) == (5, "collections.Mapping", True)
    assert (sequence.name, sequence.fixable) == ("collections.Sequence", False)
    assert sequence.edit == "from collections.abc import Sequence"
    text = repair(PROGRAM).text
    assert text == PROGRAM.replace("collections.Mapping", "collections.abc.Mapping")


def test_a_variable_of_that_name_is_left_alone():
    program = "import tensorflow as tf\n\n\ndef f(collections):\n    return collections.Mapping\n"
    assert [each for each in examine(program) if each.theme == "python 2"] == []

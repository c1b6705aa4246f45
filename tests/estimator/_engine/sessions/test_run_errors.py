import pytest
import tensorflow as tf

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.evaluating import evaluation
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import (
    explain,
    opening_errors_explained,
    run_errors_explained,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.strategy import feed

v1 = tf.compat.v1

PYTHON_ERROR = """Graph execution error:

{error}
Traceback (most recent call last):

  File "/venv/site-packages/tensorflow/python/ops/script_ops.py", line 270, in __call__
    ret = func(*args)

  File "rows.py", line 7, in read_rows
    raise ValueError("of line one\\nand two")

{error}


\t [[{{{{node PyFunc}}}}]]
\t [[{node}]]"""


@pytest.fixture(params=["train", "eval", "infer"])
def template(request):
    """A template of two features and labels, of batches of any size."""
    with fresh_graph():
        features = {
            "x": v1.placeholder(tf.float32, [None, 3]),
            "word": v1.placeholder(tf.int64, [None]),
        }
        labels = v1.placeholder(tf.float32, [None, 1])
        yield make_template(request.param, features=features, labels=labels)


def test_python_code_speaks_first_and_shows_its_own_frames_only(template):
    message = PYTHON_ERROR.format(error="ValueError: of line one\nand two", node="IteratorGetNext")
    assert explain(message, template) == (
        "ValueError: of line one\nand two\nPython code of the input raised it:\n"
        '  File "rows.py", line 7, in read_rows\n'
        '    raise ValueError("of line one\\nand two")'
    )


@pytest.mark.parametrize("module", [evaluation, feed])
def test_of_an_error_that_the_package_raises_its_words_stay(template, module):
    file = module.__file__
    message = PYTHON_ERROR.format(error="ValueError: ours", node="PyFunc").replace("rows.py", file)
    assert explain(message, template) == "ValueError: ours"


def test_the_dataset_that_newer_tensorflow_names_first_is_passed_by(template):
    # Recorded from TensorFlow 2.21.0 on Python 3.12, which underlines the call.
    message = (
        PYTHON_ERROR.format(error="ValueError: bad", node="IteratorGetNext")
        .replace("ret = func(*args)\n", "ret = func(*args)\n          ^^^^^^^^^^^\n")
        .replace(
            "ValueError: bad",
            "Error in user-defined function passed to MapDataset:3 transformation with iterator: "
            "Iterator::Root::Prefetch::Map: ValueError: bad",
            1,
        )
    )
    assert explain(message, template) == (
        "ValueError: bad\nPython code of the input raised it:\n"
        '  File "rows.py", line 7, in read_rows\n'
        '    raise ValueError("of line one\\nand two")'
    )


@pytest.mark.parametrize(
    ("node", "whose"),
    [
        ("cores/IteratorGetNextAsOptional", "of the input raised"),
        ("StatefulPartitionedCall", "of the model raised"),
    ],
)
def test_whose_python_code_it_was(template, node, whose):
    assert whose in explain(PYTHON_ERROR.format(error="ValueError: bad", node=node), template)


@pytest.mark.parametrize(
    ("expected", "yielded", "says"),
    [
        ("{'x': tf.float32, 'word': tf.int64}", "{'x': array([1.])}", "lacks the key 'word'; "),
        ("{'x': tf.float32}", "{'x': 1.0, 'more': 2}", "has the key 'more'; "),
        (
            "{'x': tf.float32, 'word': tf.int64}",
            "{'x': 1.0, 'words': 2}",
            "lacks the key 'word' and has the key 'words'; ",
        ),
        ("(tf.float32, tf.float32)", "1.0", "has another structure; "),
    ],
)
def test_a_generators_keys(template, expected, yielded, says):
    error = (
        "TypeError: `generator` yielded an element that did not match the expected structure. "
        f"The expected structure was {expected}, but the yielded element was {yielded}."
    )
    explained = explain(PYTHON_ERROR.format(error=error, node="IteratorGetNext"), template)
    assert explained == (
        f"The input changed between batches: an element of the generator {says}its "
        f"output_signature declares the structure {expected}."
    )


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ("(3,)", " (for features['x'])"),
        ("(8, 3)", " (for features['x'])"),
        ("()", " (for features['word'])"),
        ("(7,)", " (for features['word'])"),
        ("(7, 7)", ""),
    ],
)
def test_a_generators_shapes_name_the_features_that_it_can_be(template, declared, named):
    error = (
        "TypeError: `generator` yielded an element of shape (2,) where an element of shape "
        f"{declared} was expected."
    )
    explained = explain(PYTHON_ERROR.format(error=error, node="IteratorGetNext"), template)
    assert explained.endswith(
        f"has shape (2,) where its output_signature declares {declared}{named}."
    )


@pytest.mark.parametrize(
    "said",
    [
        "Cannot batch tensors with different shapes in component 1. First element had shape [3]",
        "Incompatible shapes at component 1: expected [2,3] but got [2,2].",
        "The given optional does not match the expected shape for component 1. Expected: [8,3]",
    ],
)
def test_a_component_of_the_input_is_named(template, said):
    message = f"Graph execution error:\n\n{said}\n\t [[{{{{node IteratorGetNext}}}}]]"
    explained = explain(message, template)
    assert explained.startswith("The input changed between batches, at features['x']: ")
    assert said.rstrip(".") in explained
    beyond = explain(message.replace("component 1", "component 9"), template)
    assert "at component 9: " in beyond


# What TensorFlow 2.16 says of a variable of terabytes while a session opens.
_NO_MEMORY = """Graph execution error:

Detected at node 'big/Initializer/random_uniform/RandomUniform' defined at (most recent call last):
    File "model.py", line 3, in model_fn
Node: 'big/Initializer/random_uniform/RandomUniform'
OOM when allocating tensor with shape[1000000,10000000] and type float on CPU:0 by allocator mklcpu
\t [[{{node big/Initializer/random_uniform/RandomUniform}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom"""


def test_a_tensor_that_no_memory_holds_is_named_in_a_line(template):
    says = (
        "OOM when allocating tensor with shape[1000000,10000000] and type float on CPU:0 by allocator mklcpu "
        "(at 'big/Initializer/random_uniform/RandomUniform')"
    )
    assert explain(_NO_MEMORY, template) == says
    error = tf.errors.ResourceExhaustedError(None, None, _NO_MEMORY)
    with pytest.raises(tf.errors.ResourceExhaustedError) as raised, opening_errors_explained():
        raise error
    assert raised.value.message == says
    assert raised.value.__cause__ is error


def test_other_errors_of_opening_stay_as_they_are():
    error = tf.errors.NotFoundError(None, None, "Restoring from checkpoint failed.")
    with pytest.raises(tf.errors.NotFoundError) as raised, opening_errors_explained():
        raise error
    assert raised.value is error


def test_an_op_that_wants_other_rows_is_named_as_the_model_knows_it(template):
    reshape = "Input to reshape is a tensor with 9 values, but the requested shape has 12"
    name = {"infer": "predict"}.get(template.mode, template.mode) + "_batch_size"
    for node in ("batch/core0/head/Reshape", "head/Reshape", "a/step/core0/head/Reshape"):
        explained = explain(f"{reshape}\n\t [[{{{{node {node}}}}}]]", template)
        assert f"at 'head/Reshape' ({reshape}). The batches of this input may differ" in explained
        assert name not in explained
    short = explain(f"{reshape}\n\t [[{{{{node short_batch/core0/Reshape}}}}]]", template)
    assert short.startswith(f"The last batch has fewer rows than {name}")
    assert "at 'Reshape' (Input to reshape is a tensor with 9 values" in short


def test_where_every_batch_is_full_an_op_that_fails_speaks_for_itself():
    with fresh_graph():
        template = make_template("eval", features=v1.placeholder(tf.float32, [4, 3]))
        assert explain("Incompatible shapes: [4] vs. [3]", template) is None


@pytest.mark.parametrize(
    "said",
    [
        "assertion failed: [Labels must be <= n_classes - 1, 2] [x (labels:0) = ] [[7][7]...]",
        "indices[0,0] = 7 is not in [0, 4)",
        "Cast string to float is not supported",
        "Received a label value of 7 which is outside the valid range of [0, 3).  Label values: 7 7",
    ],
)
def test_a_first_line_that_says_it_all_is_all_that_is_said(template, said):
    message = (
        f"Graph execution error:\n\n{said}\n\t [[{{{{node batch/core0/head/check}}}}]]\n\t [[Call]]"
    )
    assert explain(message, template) == f"{said} (at 'head/check')"
    message += "\n\t [[IteratorGetNext]]"
    assert explain(message, template) == f"{said} (at 'IteratorGetNext')"


def test_what_else_fails_speaks_for_itself(template):
    assert explain("Graph execution error:\n\nNo space left on device", template) is None


def test_a_nan_is_told_with_its_place_in_training_only(template):
    said = "Gradient for dense/kernel is NaN : Tensor had NaN values"
    assert explain(said, template, at_nan=lambda: "at step 3") == (
        "Gradient for dense/kernel is NaN: training stopped at step 3"
    )
    assert explain(said, template) is None


def test_an_error_keeps_its_type_and_its_cause(template):
    error = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [4] vs. [3]")
    says = "^model_fn fails on this batch"
    of_type = pytest.raises(tf.errors.InvalidArgumentError, match=says)
    with of_type as raised, run_errors_explained(template):
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.OutOfRangeError(None, None, "End of sequence"),
        tf.errors.OpError(None, None, "Incompatible shapes: of no class", tf.errors.UNKNOWN),
        ValueError("of a hook"),
    ],
)
def test_other_errors_pass_as_they_are(template, error):
    with pytest.raises(type(error)) as raised, run_errors_explained(template):
        raise error
    assert raised.value is error

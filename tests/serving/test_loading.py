"""Tests loading models by tags, here and in a fresh process, and calling signatures directly."""

import gc
import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.serving.exports import save_metagraphs
from tfx_tpu_trainer.serving import (
    copy_metagraph,
    describe_saved_model,
    find_saved_model,
    load_serving,
    read_saved_model,
    read_warmup,
)
from tfx_tpu_trainer.serving._loading import FreshProcess, FreshProcessError
from tfx_tpu_trainer.serving._overview import overview
from tfx_tpu_trainer.serving._saved_model_file import check_variables

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def dual(tmp_path_factory):
    path = tmp_path_factory.mktemp("dual") / "model"
    return save_metagraphs(str(path), ["serve"], ["serve", "tpu"])


@pytest.mark.parametrize("tags", [("serve",), ["serve"], "serve", {"serve"}])
def test_one_metagraph_of_two(dual, tags):
    model = load_serving(dual, tags=tags)
    x = [[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]]
    result = model.signatures["serving_default"](x=tf.constant(x))
    assert result["y"].numpy().tolist() == [[2 * value for value in row] for row in x]


@pytest.mark.parametrize("kind", [os.fsencode, pathlib.Path])
def test_a_path_may_be_what_an_export_returns_or_a_path_object(dual, kind, tmp_path):
    path = kind(dual)
    assert list(load_serving(path).signatures) == ["serving_default"]
    assert len(read_saved_model(path).meta_graphs) == len(describe_saved_model(path)) == 2
    assert find_saved_model(path) == overview(path)["path"] == dual
    copy_metagraph(path, str(tmp_path / "copy"))
    assert read_warmup(path) == []


def test_default_tags(dual):
    assert list(load_serving(dual).signatures) == ["serving_default"]


@row(
    "exports",
    "`load_serving(tags=('serve', 'gpu'))`",
    "no metagraph with the tags ['gpu', 'serve']: it has ['serve'] and ['serve', 'tpu']. Give all",
)
def test_tags_that_are_not_there_list_those_that_are(dual, refused):
    with refused(ValueError):
        load_serving(dual, tags=("serve", "gpu"))


@row(
    "exports",
    "`load_serving(tags=('serve', 'tpu'))` where there is no TPU",
    "runs only on a TPU host (it contains TPUOrdinalSelector)",
    'load it with tags=("serve",)',
)
def test_tpu_metagraph_needs_a_tpu(dual, refused):
    with refused(ValueError):
        load_serving(dual, tags=("serve", "tpu"))


@row(
    "exports",
    "`load_serving` of nothing",
    "The folder ",
    "/absent does not exist: give the folder that",
)
def test_no_such_folder(tmp_path, refused):
    with refused(FileNotFoundError):
        load_serving(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "folder",
    [
        case(
            "exports",
            f"`load_serving` of {given}",
            "contains no saved_model.pb",
            *says,
            values=folder,
        )
        for given, folder, *says in (
            ("the folder above", "model", ", but ", "/model/Format-Serving does: give that folder"),
            ("the folder above that", "", "; it has model. Give the folder that contains it"),
        )
    ],
)
def test_folder_above_or_beside(tmp_path, folder, refused):
    save_metagraphs(str(tmp_path / "model" / "Format-Serving"), ["serve"])
    with refused(FileNotFoundError):
        load_serving(str(tmp_path / folder))


@row(
    "exports",
    "`load_serving` of a model whose variables were not copied",
    "is incomplete: it has no variables/variables.index. Copy its folder again, or export",
)
def test_a_model_without_its_variables_is_not_loaded(tmp_path, refused):
    save_metagraphs(str(tmp_path), ["serve"])
    tf.io.gfile.rmtree(str(tmp_path / "variables"))
    with refused(ValueError):
        load_serving(str(tmp_path))


@row(
    "exports",
    "`load_serving` from a folder with brackets in its name",
    "path=",
    "has '[1]' in it, which TensorFlow takes for a pattern when it looks for files by name",
    "can be renamed",
)
def test_a_model_in_a_folder_that_tensorflow_takes_for_a_pattern(tmp_path, refused):
    save_metagraphs(str(tmp_path / "model"), ["serve"])
    (tmp_path / "model").rename(tmp_path / "model[1]")
    with refused(ValueError):
        load_serving(str(tmp_path / "model[1]"))


def test_a_model_without_variables_is_whole(tmp_path):
    module = tf.Module()
    module.double = tf.function(
        lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], name="x")]
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.double)
    tf.io.gfile.rmtree(str(tmp_path / "variables"))
    check_variables(str(tmp_path), read_saved_model(str(tmp_path)))


X = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]], np.float32)


@pytest.fixture
def path(tmp_path):
    return save_metagraphs(str(tmp_path / "model"), ["serve"], ["serve", "tpu"])


def _fail(value):
    raise AssertionError(f"{value!r} is printed")


def test_no_call_prints_its_inputs(path):
    x = tf.constant(X)
    # So it is in the loader itself of TensorFlow 2.16 (2.21's no longer prints): the reason for all this.
    if tf.version.VERSION.startswith("2.16."):
        by_loader = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
        with (
            np.printoptions(formatter={"all": _fail}),
            pytest.raises(AssertionError, match="printed"),
        ):
            by_loader(x=x)
    signature = load_serving(path).signatures["serving_default"]
    with np.printoptions(formatter={"all": _fail}):
        answer = signature(x=x)
    np.testing.assert_array_equal(answer["y"], 2 * X)


def test_a_signature_alone_keeps_the_variables(path):
    signature = load_serving(path).signatures["serving_default"]
    gc.collect()
    np.testing.assert_array_equal(signature(x=tf.constant(X))["y"], 2 * X)


def test_inputs_and_outputs_are_described_as_before(path):
    by_loader = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
    signature = load_serving(path).signatures["serving_default"]
    assert signature.structured_input_signature == by_loader.structured_input_signature
    assert set(signature.structured_outputs) == {"y"}
    with pytest.raises(TypeError, match="x"):
        signature(z=tf.constant(X))


def test_inputs_that_are_no_floats_and_batches_of_any_size(tmp_path):
    folder = str(tmp_path / "model")
    builder = v1.saved_model.Builder(folder)
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None], name="words")
        counts = v1.placeholder(tf.int64, name="counts")
        signature = v1.saved_model.predict_signature_def(
            {"the words": words, "counts": counts},
            {"lengths": tf.strings.length(words), "of counts": counts + 1},
        )
        builder.add_meta_graph_and_variables(
            session, ["serve"], signature_def_map={"lengths": signature}
        )
    builder.save()
    lengths = load_serving(folder).signatures["lengths"]
    for given in (["a"], ["a", "bcd"]):
        answer = lengths(**{"the words": tf.constant(given), "counts": tf.constant(5, tf.int64)})
        assert answer["lengths"].numpy().tolist() == [len(word) for word in given]
        assert answer["of counts"].numpy() == 6


@pytest.mark.parametrize("names", [["a b", "a-b", "$x"], ["self"]])
def test_inputs_with_names_that_no_function_can_have_leave_the_others_alone(tmp_path, names):
    folder = str(tmp_path / "model")
    builder = v1.saved_model.Builder(folder)
    with tf.Graph().as_default(), v1.Session() as session:
        inputs = {name: v1.placeholder(tf.float32, [None]) for name in names}
        total = tf.add_n([value * 10**power for power, value in enumerate(inputs.values())])
        signatures = {
            "sum": v1.saved_model.predict_signature_def(inputs, {"sum": total}),
            "one": v1.saved_model.predict_signature_def(
                {"x": inputs[names[0]]}, {"y": 2 * inputs[names[0]]}
            ),
        }
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signatures)
    builder.save()
    try:
        tf.saved_model.load(folder)
    except ValueError as error:
        # That of 2.21 makes a Python function of every signature, and a function can't have the same parameter twice.
        pytest.skip(f"TensorFlow's own loader refuses the model: {error}")
    signatures = load_serving(folder).signatures
    assert signatures["one"](x=tf.constant([3.0]))["y"].numpy().tolist() == [6.0]
    assert set(signatures["sum"].structured_input_signature[1]) == set(names)


def test_a_model_of_version_2_is_left_as_it_is(tmp_path):
    module = tf.Module()
    module.double = tf.function(
        lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], tf.float32, name="x")]
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.double)
    model = load_serving(str(tmp_path))
    assert model.double(tf.constant([1.0]))["y"].numpy().tolist() == [2.0]
    answer = model.signatures["serving_default"](x=tf.constant([1.0, 2.0]))
    assert answer["y"].numpy().tolist() == [2.0, 4.0]


MODULE = "tests.serving.ends_badly"


def run_fresh(way):
    with FreshProcess(MODULE) as process:
        process.run([way], timeout_seconds=60)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("killed", "its process was killed by SIGKILL"),
        ("raises", "ValueError: the reason"),
        ("silent", "its process ended with exit code 3"),
    ],
)
def test_a_bad_end_has_a_reason_of_one_line(way, reason):
    with pytest.raises(FreshProcessError) as caught:
        run_fresh(way)
    assert str(caught.value) == reason


def test_a_good_end_says_nothing(capfd):
    run_fresh("well")
    assert capfd.readouterr() == ("", "")


def test_keras_is_not_imported_and_is_there_when_it_is_asked_for(tmp_path):
    found = told_by(tmp_path, "tests.serving.tells_imports")
    assert found["with_tensorflow"] == []
    assert found["keras"].startswith("tf_keras")


def test_beside_an_op_library_nothing_is_spared(tmp_path, monkeypatch):
    blocked = {}
    for libraries in ([], ["struct2tensor"]):
        for name in libraries:
            (tmp_path / f"{name}.py").touch()
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        blocked[bool(libraries)] = told_by(tmp_path, "tests.serving.tells_blocked_imports")
    assert "keras" in blocked[False] and "tf_keras" in blocked[False]
    assert blocked[True] == []


@pytest.mark.sweep
def test_an_op_library_finds_keras_where_tensorflow_has_it(tmp_path, monkeypatch):
    library = tmp_path / "struct2tensor.py"
    library.write_text("from tensorflow.keras import layers\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "struct2tensor", ModuleType("struct2tensor"))
    assert "tf_keras" in told_by(tmp_path, "tests.serving.tells_imports")["with_tensorflow"]


def told_by(folder, module):
    """Returns the output of a module of this folder in its own process."""
    with FreshProcess(module) as process:
        process.run([str(folder / "told.json")], timeout_seconds=120)
    return json.loads((folder / "told.json").read_text(encoding="utf-8"))


def test_files_of_the_working_directory_are_not_imported(tmp_path, monkeypatch):
    # Python's own modules are meant, several of which the process imports before its module.
    for name in ("csv", "runpy", "signal", "tests"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the working directory')")
    monkeypatch.chdir(tmp_path)
    run_fresh("well")


def test_a_process_that_is_not_needed_ends(capfd):
    with FreshProcess(MODULE) as process:
        os.kill(process.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert capfd.readouterr() == ("", "")


def test_a_process_whose_starter_has_died_ends():
    # The starter is killed, so nothing of it can tidy up. Forked, which spares it the imports.
    starter = multiprocessing.get_context("fork")
    receiver, sender = starter.Pipe(duplex=False)
    process = starter.Process(target=_start_and_die, args=(sender,))
    process.start()
    assert receiver.poll(60)
    started = receiver.recv()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while _runs(started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _start_and_die(sender):
    sender.send(FreshProcess(MODULE).pid)
    os.kill(os.getpid(), signal.SIGKILL)


def _runs(pid):
    """Returns whether a process runs; one that has ended stays listed if nobody waits for it."""
    try:
        return " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False

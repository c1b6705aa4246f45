from __future__ import annotations

import os
import pathlib

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.serving.saved_models import save_metagraphs
from tfx_tpu_trainer.serving import (
    copy_metagraph,
    describe_saved_model,
    find_saved_model,
    load_serving,
    read_saved_model,
    read_warmup,
)
from tfx_tpu_trainer.serving._model_variables import check_variables
from tfx_tpu_trainer.serving._overview import overview


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

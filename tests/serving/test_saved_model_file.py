"""Tests models in buckets, where files appear one by one, and copies of one metagraph."""

import threading
import uuid
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.serving.exports import save_metagraphs
from tfx_tpu_trainer._support import whole_files
from tfx_tpu_trainer.components.trainer.artifacts import copy_folder
from tfx_tpu_trainer.serving import copy_metagraph, describe_saved_model, find_saved_model

v1 = tf.compat.v1


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """Two versions of a model in a bucket; the newer one has come without its last file."""
    monkeypatch.setattr(whole_files, "_POLL_SECONDS", 0.02)
    model = save_metagraphs(str(tmp_path / "model"), ["serve"])
    base = f"ram://{uuid.uuid4().hex}/taxi"
    for version in ("9", "10"):
        copy_folder(model, f"{base}/{version}")
    tf.io.gfile.remove(f"{base}/10/saved_model.pb")
    return base


def test_the_newest_version_that_is_whole_is_found(versions):
    assert find_saved_model(versions) == f"{versions}/9"


@pytest.mark.parametrize("read", [find_saved_model, describe_saved_model])
def test_a_version_that_is_being_written_is_waited_for(versions, read):
    tf.io.gfile.makedirs(f"{versions}/10")
    writer = threading.Timer(
        0.1,
        tf.io.gfile.copy,
        [f"{versions}/9/saved_model.pb", f"{versions}/10/saved_model.pb"],
    )
    writer.start()
    found = read(f"{versions}/10")
    assert found == f"{versions}/10" or [each.tags for each in found] == [("serve",)]
    writer.join()


X = [[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]]


@pytest.fixture(scope="module")
def dual(tmp_path_factory):
    path = tmp_path_factory.mktemp("dual") / "model"
    return save_metagraphs(str(path), ["serve"], ["serve", "tpu"])


def test_the_copy_is_loaded_without_tags(dual, tmp_path):
    with pytest.raises(ValueError, match="more than one MetaGraph"):
        tf.saved_model.load(dual)
    destination = str(tmp_path / "copies" / "1")
    assert copy_metagraph(dual, destination) == destination
    model = tf.saved_model.load(destination)
    result = model.signatures["serving_default"](x=tf.constant(X))
    np.testing.assert_array_equal(result["y"], 2 * np.array(X, np.float32))
    # The original is as it was.
    assert len(describe_saved_model(dual)) == 2


@pytest.mark.parametrize("tags", ["serve", ("serve",), ["tpu", "serve"]])
def test_the_copy_keeps_the_metagraph_as_it_is(dual, tmp_path, tags):
    wanted = {tags} if isinstance(tags, str) else set(tags)
    (original,) = [each for each in describe_saved_model(dual) if set(each.tags) == wanted]
    (copy,) = describe_saved_model(copy_metagraph(dual, str(tmp_path / "copy"), tags=tags))
    assert copy == original


def test_keras_takes_the_copy(dual, tmp_path):
    copy = copy_metagraph(dual, str(tmp_path / "copy"))
    layer = keras.layers.TFSMLayer(copy, call_endpoint="serving_default")
    np.testing.assert_array_equal(layer(tf.constant(X))["y"], 2 * np.array(X, np.float32))


def test_assets_and_extra_assets_are_copied(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    path = str(tmp_path / "model")
    builder = v1.saved_model.Builder(path)
    for index, tags in enumerate((["serve"], ["serve", "tpu"])):
        with tf.Graph().as_default(), v1.Session() as session:
            table = tf.lookup.StaticVocabularyTable(
                tf.lookup.TextFileInitializer(
                    str(words),
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                ),
                num_oov_buckets=1,
            )
            word = v1.placeholder(tf.string, [None])
            signature = v1.saved_model.predict_signature_def(
                {"word": word}, {"id": table.lookup(word)}
            )
            options = {
                "signature_def_map": {"serving_default": signature},
                "assets_collection": v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
                "main_op": v1.tables_initializer(),
            }
            if index:
                builder.add_meta_graph(tags, **options)
            else:
                builder.add_meta_graph_and_variables(session, tags, **options)
    builder.save()
    extra = Path(path) / "assets.extra" / "deeper"
    extra.mkdir(parents=True)
    (extra / "requests").write_text("warm")

    copy = copy_metagraph(path, str(tmp_path / "copy"))
    tf.io.gfile.rmtree(path)
    words.unlink()
    signature = tf.saved_model.load(copy).signatures["serving_default"]
    assert signature(word=tf.constant(["b", "z"]))["id"].numpy().tolist() == [1, 2]
    assert (Path(copy) / "assets.extra" / "deeper" / "requests").read_text() == "warm"


@row(
    "exports",
    "`copy_metagraph(tags='gpu')`",
    "has no metagraph with the tags ['gpu']: it has ['serve'] and ['serve', 'tpu']. Give all",
)
def test_tags_that_are_not_there_list_those_that_are(dual, tmp_path, refused):
    with refused(ValueError):
        copy_metagraph(dual, str(tmp_path / "copy"), tags="gpu")
    assert not (tmp_path / "copy").exists()


@row(
    "exports",
    "`copy_metagraph` into a folder that is there",
    " already exists: give a new folder",
)
def test_what_is_there_is_not_overwritten(dual, tmp_path, refused):
    with refused(ValueError):
        copy_metagraph(dual, str(tmp_path))


def test_nothing_is_left_of_a_copy_that_fails(dual, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.io.gfile, "copy", full)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        copy_metagraph(dual, str(tmp_path / "copy"))
    assert list(tmp_path.iterdir()) == []

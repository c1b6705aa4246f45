from __future__ import annotations

import pytest
import tensorflow as tf

from tests.serving.saved_models import save_metagraphs
from tfx_tpu_trainer.serving import load_serving


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


def test_default_tags(dual):
    assert list(load_serving(dual).signatures) == ["serving_default"]


def test_tags_that_are_not_there_list_those_that_are(dual):
    with pytest.raises(ValueError, match=r"tags \['gpu', 'serve'\]") as error:
        load_serving(dual, tags=("serve", "gpu"))
    assert "it has ['serve'] and ['serve', 'tpu']" in str(error.value)


def test_tpu_metagraph_needs_a_tpu(dual):
    with pytest.raises(ValueError, match=r"runs on a TPU host only .*TPUOrdinalSelector"):
        load_serving(dual, tags=("serve", "tpu"))


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"There is no folder {tmp_path}/absent"):
        load_serving(str(tmp_path / "absent"))


def test_folder_above_or_beside(tmp_path):
    save_metagraphs(str(tmp_path / "model" / "Format-Serving"), ["serve"])
    with pytest.raises(FileNotFoundError, match=r"but .*/model/Format-Serving does"):
        load_serving(str(tmp_path / "model"))
    with pytest.raises(FileNotFoundError, match=r"in it are: model"):
        load_serving(str(tmp_path))

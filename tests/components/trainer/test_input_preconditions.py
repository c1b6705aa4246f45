"""Tests errors in the examples and the transform graph, found before any training starts."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests import tfx_testdata
from tests.bad_input import case, row
from tests.components.trainer.execution import Execution, examples_of, records
from tests.components.trainer.test_preconditions import fails as fails


def _with_rows(folder, **rows):
    execution = Execution.of_trainer(folder)
    written = {"train": records("train", 70), "eval": records("eval", 10), **rows}
    execution.inputs["examples"] = [examples_of(folder / "rows", **written)]
    return execution


class TestExamples:
    @pytest.mark.parametrize(
        ("splits", "mode"),
        [
            case(
                "data",
                '`train_args.splits=["trian"]`',
                "train split 'trian' is not among the splits",
                "did you mean 'train'",
                "name one in train_args=tfx.proto.TrainArgs(splits=[...]",
                values=("trian", "train"),
            ),
            case(
                "data",
                '`eval_args.splits=["test"]`',
                "eval split 'test' is not among the splits",
                "valid: 'eval', 'train'; name one in eval_args=",
                values=("test", "eval"),
            ),
        ],
    )
    def test_a_split_that_is_not_there(self, tmp_path, splits, mode, fails):
        args = json.dumps({"num_steps": 5, "splits": [splits]})
        fails(Execution.of_trainer(tmp_path, **{f"{mode}_args": args}))

    @row("data", "a split without files", "eval split 'eval' has no files in", "run the component")
    def test_a_split_without_files(self, tmp_path, fails):
        execution = _with_rows(tmp_path, eval=[])
        for path in (tmp_path / "rows" / "Split-eval").iterdir():
            path.unlink()
        fails(execution)

    @pytest.mark.parametrize(
        "empty",
        [
            case(
                "data",
                f"{mode} files without rows",
                f"{mode} split '{mode}' has no rows; check the pipeline's input data",
                values=mode,
            )
            for mode in ("train", "eval")
        ],
    )
    def test_a_split_without_rows(self, tmp_path, empty, fails):
        fails(_with_rows(tmp_path, **{empty: []}))

    @row(
        "data",
        "fewer rows than `train_batch_size`",
        "train_batch_size=64 is larger than the train split 'train', which has 50 rows",
        "use at most 50",
    )
    def test_fewer_rows_than_a_batch(self, tmp_path, fails):
        fails(_with_rows(tmp_path, train=records("train", 50)))

    @pytest.mark.parametrize(
        ("split", "record"),
        [
            case(
                "data",
                "`examples` that are not Transform's",
                "train split 'train' can't be read with Transform's schema: row 1 of",
                "is required but could not be found",
                "give examples=transform.outputs['transformed_examples']",
                values=("train", b""),
            ),
            case(
                "data",
                "a first row that is not a tf.Example, with bytes that are not text",
                "eval split 'eval' can't be read with Transform's schema: row 1 of",
                "it is not a tf.Example; give examples=",
                values=("eval", b"\xff\xfe\x00 garbage"),
            ),
        ],
    )
    def test_rows_that_are_not_transforms(self, tmp_path, split, record, fails):
        fails(_with_rows(tmp_path, **{split: [record] * 70}))

    @row(
        "data",
        "a .gz file that is not one",
        "train split 'train' can't be read with Transform's schema: ",
        "rows-00000-of-00001.gz can't be read: inflate() failed",
    )
    def test_a_file_that_is_not_compressed(self, tmp_path, fails):
        execution = _with_rows(tmp_path)
        (path,) = (tmp_path / "rows" / "Split-train").iterdir()
        path.write_bytes(b"no gzip at all" * 10)
        fails(execution)

    @pytest.mark.parametrize(
        "edit",
        [
            case(
                "data",
                "no `examples` artifact",
                "examples is missing; give examples=transform.outputs['transformed_examples']",
                values=lambda inputs: inputs.pop("examples"),
            ),
            case(
                "data",
                "an Examples artifact whose split names are not JSON",
                "have split_names='train,eval', which is not a JSON list of names; rerun the "
                "component",
                values=lambda inputs: setattr(inputs["examples"][0], "split_names", "train,eval"),
            ),
            case(
                "data",
                "an Examples artifact of an unknown payload format",
                "have payload_format='FORMAT_XYZ', which TFX does not know; let their component",
                values=lambda inputs: inputs["examples"][0].set_string_custom_property(
                    "payload_format", "FORMAT_XYZ"
                ),
            ),
            case(
                "data",
                "a pipeline root with brackets in its name",
                "examples='/root[1]/examples' has '[1]' in it, which TensorFlow takes for a pattern",
                values=lambda inputs: setattr(inputs["examples"][0], "uri", "/root[1]/examples"),
            ),
            case(
                "data",
                "Examples in Parquet, without an input_fn",
                "train split 'train': TFX can't read examples of this payload_format as a dataset",
                "give an input_fn in the module",
                values=lambda inputs: inputs["examples"][0].set_string_custom_property(
                    "payload_format", "FORMAT_PARQUET"
                ),
            ),
        ],
    )
    def test_an_artifact_that_tells_wrong_things(self, tmp_path, edit, fails):
        execution = Execution.of_trainer(tmp_path)
        edit(execution.inputs)
        fails(execution)

    @pytest.mark.parametrize(
        "rows",
        [
            case(
                "data",
                "`raw_examples` without rows",
                "raw_examples have no rows in",
                "Split-eval",
                "give raw_examples=example_gen.outputs['examples']",
                values=[],
            ),
            case(
                "data",
                "`raw_examples` that are not tf.Examples",
                "raw_examples are not tf.Examples (",
                "give raw_examples=example_gen.outputs['examples']",
                values=[b"\xff\xfe garbage"],
            ),
            case(
                "data",
                "`raw_examples` whose rows are empty",
                "raw_examples are not tf.Examples, or empty ones; give "
                "raw_examples=example_gen.outputs",
                values=[b""],
            ),
        ],
    )
    def test_raw_examples(self, tmp_path, rows, fails):
        execution = Execution.of_trainer(tmp_path)
        execution.add_raw_examples(tmp_path / "raw", train=[], eval=rows)
        fails(execution)

    @row(
        "data",
        "`raw_examples` in a .gz file that is not one",
        "raw_examples can't be read in",
        "(inflate() failed",
        "give raw_examples=example_gen.outputs['examples']",
    )
    def test_raw_examples_that_cannot_be_read(self, tmp_path, fails):
        execution = Execution.of_trainer(tmp_path)
        execution.add_raw_examples(tmp_path / "raw", train=[], eval=[b""])
        (path,) = (tmp_path / "raw" / "Split-eval").iterdir()
        path.write_bytes(b"no gzip at all" * 10)
        fails(execution)

    @row(
        "data",
        "`raw_examples` without the eval split",
        "eval split 'eval' is not among the splits of the examples at",
        "raw; valid: 'train'; name one in eval_args=",
    )
    def test_raw_examples_without_the_split(self, tmp_path, fails):
        execution = Execution.of_trainer(tmp_path)
        execution.add_raw_examples(tmp_path / "raw", train=records("train", 1))
        fails(execution)


class TestTransformGraph:
    @pytest.fixture
    def execution(self, tmp_path):
        execution = Execution.of_trainer(tmp_path)
        folder = tmp_path / "graph"
        shutil.copytree(tfx_testdata.TRANSFORM_GRAPH, folder, copy_function=shutil.copyfile)
        execution.inputs["transform_graph"][0].uri = str(folder)
        return execution

    @pytest.mark.parametrize(
        ("place", "content"),
        [
            case(
                "data",
                "a TransformGraph artifact whose folder is gone",
                "transform_graph ",
                "graph is not a folder; run Transform again",
                values=("", None),
            ),
            case(
                "data",
                "a TransformGraph without the schema of its output",
                "the schema transformed_metadata/schema.pbtxt can't be read",
                "does not exist",
                "run Transform again",
                values=("transformed_metadata/schema.pbtxt", None),
            ),
            case(
                "data",
                "a TransformGraph whose schema.pbtxt has a field that is not one",
                "the schema transformed_metadata/schema.pbtxt can't be read (ParseError: 1:21",
                'no field named "typo"',
                "run Transform again",
                values=("transformed_metadata/schema.pbtxt", b"feature { name: 'x' typo: 3 }"),
            ),
            case(
                "data",
                "a TransformGraph whose schema.pbtxt is not text",
                "the schema transformed_metadata/schema.pbtxt can't be read (UnicodeDecodeError",
                "run Transform again",
                values=("transformed_metadata/schema.pbtxt", b"feature \xff"),
            ),
            case(
                "data",
                "a TransformGraph whose list of vocabularies is not valid JSON",
                "the sizes of its vocabularies can't be read (JSONDecodeError",
                "run Transform again",
                values=("transformed_metadata/asset_map", b"{"),
            ),
            case(
                "data",
                "a TransformGraph without one of its vocabularies",
                "the sizes of its vocabularies can't be read",
                "vocab_compute_and_apply_vocabulary_vocabulary, does not exist",
                "run Transform again",
                values=("transform_fn/assets/vocab_compute_and_apply_vocabulary_vocabulary", None),
            ),
            case(
                "data",
                "a TransformGraph without its SavedModel",
                "Transform's graph can't be used, so the model couldn't be exported after training",
                "SavedModel file does not exist",
                "give a serving_input_receiver_fn in the module",
                values=("transform_fn/saved_model.pb", None),
            ),
            case(
                "data",
                "a TransformGraph with a SavedModel that is not one",
                "Transform's graph can't be used, so the model couldn't be exported after training",
                "Cannot parse file",
                "run Transform again",
                values=("transform_fn/saved_model.pb", b"\xff\xfe garbage"),
            ),
            case(
                "data",
                "a TransformGraph with a raw schema that is not one",
                "Transform's graph can't be used, so the model couldn't be exported after training",
                "ParseError: 1:11",
                values=("metadata/schema.pbtxt", b"feature { nm: 3 }"),
            ),
        ],
    )
    def test_what_is_missing_or_broken_is_named(self, execution, place, content, fails):
        path = os.path.join(execution.inputs["transform_graph"][0].uri, place)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        elif place:
            os.remove(path)
        else:
            shutil.rmtree(path)
        fails(execution)

    @row(
        "data",
        "no `transform_graph` artifact",
        "transform_graph is missing; give transform_graph=transform.outputs['transform_graph']",
    )
    def test_no_transform_graph(self, tmp_path, fails):
        execution = Execution.of_trainer(tmp_path)
        del execution.inputs["transform_graph"]
        fails(execution)

    @row(
        "data",
        "`label_key='tip_xf'`, which Transform does not output",
        "label_key='tip_xf' is not an output of Transform; did you mean 'tips_xf'",
    )
    def test_a_label_that_transform_did_not_output(self, tmp_path, fails):
        fails(Execution.of_trainer(tmp_path, label_key="tip_xf"))

    @row(
        "data",
        "no `label_key`, and a model_fn that takes labels",
        "label_key is not set, but model_fn takes labels; name the transformed feature",
        "'tips_xf'",
        "or give an input_fn in the module",
    )
    def test_no_label_key_for_a_model_that_takes_labels(self, tmp_path, fails):
        fails(Execution.of_trainer(tmp_path, label_key=None))

"""`tfx-tpu-trainer preflight` with the real compiler, as it is typed."""

import json
import pathlib
import shlex
import sys

import pytest

from tests.bad_input import case, row
from tests.workbench.cli.preflight_command import INPUT, MODEL, options_of_files, preflight
from tfx_tpu_trainer.preflight._report_files import read_json


@pytest.fixture
def files(tmp_path):
    return options_of_files(tmp_path)


def test_a_report_as_text_json_and_page(files, tmp_path):
    out = {"json": str(tmp_path / "report.json"), "html": str(tmp_path / "report.html")}
    ended = preflight({**files, **out, "steps": "train,predict"})
    assert ended.exit_code == 0, ended.output
    assert str(tmp_path) not in sys.path and "small_model" not in sys.modules
    assert "Preflight of small_model for v5e:2x4  8 replicas" in ended.stdout
    assert "✓ train, 64 rows: compiles and fits" in ended.stdout
    assert "✓ predict, 64 rows: compiles and fits" in ended.stdout
    report = read_json(out["json"])
    train = report.steps[0]
    assert report.ok and [step.name for step in report.steps] == ["train", "predict"]
    assert train.parameter_count == 8192
    # A product of [8, 8192] and [8192, 1], and another for the gradient.
    assert train.flops == pytest.approx(2 * 2 * 8 * 8192, rel=0.1)
    # The gradient of the kernel, and the loss that is not summed.
    assert train.collective_bytes == 4 * 8192
    # The kernel and the features are read, the kernel is written.
    assert train.bytes_accessed >= 4 * 8192 * (1 + 8 + 1)
    page = pathlib.Path(out["html"]).read_text(encoding="utf-8")
    assert "<svg" in page and "v5e:2x4" in page


def test_with_less_effort_the_compiler_makes_another_program(files, tmp_path):
    sized = {**files, "params": '{"rate": 0.1, "units": 512}', "batch_size": "8192"}
    need = []
    for effort in (None, "-1"):
        out = str(tmp_path / f"report{effort}.json")
        assert preflight({**sized, "effort": effort, "json": out}).exit_code == 0
        need.append(read_json(out).steps[0].memory.generated_code_bytes)
    assert need[1] < need[0]


def test_a_model_that_does_not_fit_is_reported_with_exit_code_1(files, tmp_path):
    out = str(tmp_path / "report.json")
    ended = preflight({**files, "params": '{"rate": 0.1, "units": 1000000}', "json": out})
    assert ended.exit_code == 1, ended.output
    assert "✗ train, 64 rows: does not fit" in ended.stdout
    assert "kernel" in ended.stdout and "f32[8192,1000000]" in ended.stdout
    step = read_json(out).steps[0]
    assert step.problem.stage == "memory" and step.need_bytes > step.limit_bytes


def test_an_op_that_no_tpu_runs_is_named_with_its_line(files):
    ended = preflight({**files, "params": '{"rate": 0.1, "python": true}'})
    assert ended.exit_code == 1, ended.output
    assert "✗ train, 64 rows: TensorFlow can't turn it into a TPU program" in ended.stdout
    flat = " ".join(ended.stdout.split())
    assert "EagerPyFunc" in flat and "small_model.py:13: hidden = tf.py_function(" in flat
    assert "do: Write it with TensorFlow ops" in flat


def test_a_sweep_prints_the_largest_batch_that_fits(files, tmp_path):
    out = str(tmp_path / "sweep.json")
    sizes = f"{2**24},64,32,12"
    ended = preflight(
        {**files, "tpu": "v5e:2x4,v5e:1x1", "batch_size": sizes, "json": out}, "--sweep"
    )
    assert ended.exit_code == 0, ended.output
    assert "Largest batch of the list that fits:" in ended.stdout
    assert "v5e:2x4: 64 fits" in ended.stdout and "v5e:1x1: 64 fits" in ended.stdout
    found = json.loads(pathlib.Path(out).read_text(encoding="utf-8"))
    assert found["largest"] == {"v5e:2x4": 64, "v5e:1x1": 64}
    assert [(each["batch_size"], each["outcome"]) for each in found["entries"]] == [
        (2**24, "too large"),
        (64, "fits"),
        (32, "skipped"),
        (12, "not divisible"),
        (2**24, "too large"),
        (64, "fits"),
        (32, "skipped"),
        (12, "skipped"),
    ]


def test_a_sweep_where_nothing_fits_ends_with_exit_code_1(files):
    ended = preflight({**files, "batch_size": f"{2**24},{2**23}"}, "--sweep")
    assert ended.exit_code == 1, ended.output
    assert "v5e:2x4: none of the list fits" in ended.stdout


def refusal(changed, *says):
    given = " ".join(
        f"--{name}={shlex.quote(value)}" if value is not None else f"and no `--{name}`"
        for name, value in changed.items()
    )
    given = given if given.startswith("and") else f"`{given}`"
    return case("preflight", given, "Error: ", *says, values=changed)


_NO_MODULE = {"module_file": None, "steps": None}


@pytest.mark.parametrize(
    "changed",
    [
        refusal({"tpu": "v9:2x4"}, "unknown generation 'v9'; use one of v2, v3"),
        refusal({"tpu": "v5e:3x5"}, "v5e has no slice '3x5'; nearest: v5e:4x4"),
        refusal(
            {"tpu": "v5e:2x4,v5e:1x1"}, "--tpu v5e:2x4,v5e:1x1: give one value, or add --sweep"
        ),
        refusal({"tpu": None}, "--tpu is missing: give it, such as --tpu v5e:2x4, or run the"),
        refusal({"batch_size": None}, "--batch_size is missing: give it, such as --batch_size"),
        refusal({"tpu": ""}, "--tpu is empty: give a slice, such as v5e:2x4"),
        refusal({"batch_size": "63"}, "batch size of train 63 must be divisible by the 8 replicas"),
        refusal({"batch_size": "64,32"}, "--batch_size 64,32: give one value, or add --sweep"),
        refusal(
            {"steps": "train,test"}, "--steps train,test: give any of train,eval,predict,serve"
        ),
        refusal({"steps": ""}, "--steps : give any of train,eval,predict,serve"),
        refusal({"steps": "serve"}, "The serve step needs an exported model: give --saved_model"),
        refusal(
            {"module_file": None},
            "Nothing to compile: give a module with model_fn (--module_file or --module)",
        ),
        refusal({"module": "small_model"}, "one of --module_file and --module, not both"),
        refusal(
            {"module_file": "no/model.py"},
            "module_file='no/model.py' is not a Python file on this machine",
        ),
        refusal(
            {"module_file": "."},
            "module_file='.' is not a Python file on this machine; give the path of a .py",
        ),
        refusal(
            {"feature_spec": None}, "has no input_fn, so the input of model_fn is unknown: give"
        ),
        refusal(
            {"feature_spec": "no.json"}, "The feature spec no.json can't be read (", "give a file"
        ),
        refusal(
            {"feature_spec": "."}, "The feature spec . can't be read (", "Is a directory): give a"
        ),
        refusal(
            {"transform_output": "folder"}, "one of --transform_output and --feature_spec, not both"
        ),
        refusal({"label_key": "z"}, "label_key='z' is not among the features: give one of x, y"),
        refusal(
            {"num_cores_per_replica": "16"},
            "num_cores_per_replica=16 is more than the 8 TPU devices of v5e:2x4: use a larger slice",
        ),
        refusal(
            {"input_partition_dims": '[{"x": [1, 2]}]'},
            "--input_partition_dims needs --num_cores_per_replica: give both",
        ),
        refusal(
            {"num_cores_per_replica": "2", "input_partition_dims": "[1"},
            "--input_partition_dims '[1' is not valid JSON (",
        ),
        refusal(
            {"num_cores_per_replica": "2", "input_partition_dims": '[{"z": [2]}]'},
            "TPUConfig.input_partition_dims[0] mismatched feature keys. Expected ['x'], got ['z']",
        ),
        refusal(
            {"num_cores_per_replica": "2", "input_partition_dims": '[{"x": [1, 4]}]'},
            "The product of each input partition dim should equal to num_cores_per_replica. (dim = [1, 4]",
        ),
        refusal(
            {"function": "my:step"},
            "--function can't be combined with --module_file: leave one of them out",
        ),
        refusal(
            {"function": "step", **_NO_MODULE}, "--function 'step': give a module and a name in it"
        ),
        refusal({"function": "no_such:step", **_NO_MODULE}, "the module 'no_such' can't be found"),
        refusal(
            {"function": "json:step", **_NO_MODULE},
            "--function json:step: the module has no 'step'",
        ),
        refusal(
            {"function": "json:dumps", **_NO_MODULE},
            "'dumps' does not declare one: give a tf.Tensor",
        ),
        refusal(
            {"num_slices": "3"},
            "must be divisible by the 24 replicas of 3 slices of v5e:2x4: 48 or 72 would be",
        ),
        refusal(
            {"num_slices": "2", "tpu": "v4:2x2x1"},
            "num_slices=2: no bandwidth is published for the network between slices of v4. Use one",
        ),
        refusal(
            {"num_slices": "2", "saved_model": "model", "steps": "serve"},
            "--num_slices can't be combined with --sweep or with the serve step",
        ),
        refusal(
            {"params": "rate=0.1"}, "--params 'rate=0.1' is not valid JSON (", "give a JSON object"
        ),
        refusal({"params": "[1]"}, "--params '[1]': give a JSON object"),
        refusal(
            {"params": '{"rate": NaN}'},
            "--params '{\"rate\": NaN}' is not valid JSON (",
            "give a JSON",
        ),
        refusal(
            {"params": '{"rate": 1e999}'},
            "is not valid JSON (Out of range float",
            "give a JSON object",
        ),
        case(
            "preflight",
            "`--params` nested 100,000 deep",
            "Error: --params '[[[",
            "is not valid JSON (maximum recursion depth exceeded",
            "give a JSON object",
            values={"params": "[" * 100_000},
        ),
        refusal({"params": None}, "'rate', which does not exist"),
        refusal(
            {"libtpu_path": "no/libtpu.so"},
            "libtpu_path='no/libtpu.so': libtpu.so does not exist there. Give",
        ),
        refusal({"timeout": "nan"}, "--timeout nan: give a number of seconds, such as 300"),
        refusal({"timeout": "inf"}, "--timeout inf: give a number of seconds, such as 300"),
        refusal({"effort": "2"}, "--effort 2: give a number from -1 to 1"),
        refusal({"effort": "nan"}, "--effort nan: give a number from -1 to 1"),
        refusal(
            {"measure_input": "0"},
            "--measure_input 0: give a number of seconds above 0, at most 60",
        ),
        refusal(
            {"measure_input": "61"},
            "--measure_input 61: give a number of seconds above 0, at most 60",
        ),
        refusal({"measure_input": "9"}, "reads the module's own input_fn in the train step: leave"),
        refusal({"price": "no.json"}, "--price no.json can't be read: No such file"),
        refusal({"deadline": "4h"}, "--deadline needs --price: give a price file"),
        refusal({"queue_time": "soon"}, "--queue_time needs --price: give a price file"),
        refusal({"train_steps": "100"}, "--train_steps needs --price: give a price file"),
        refusal({"profile": "/dev/null"}, "--profile='/dev/null/plugins' can't be written: "),
        refusal({"json": ""}, "--json='' is not a path; give the path of a file"),
        refusal({"json": "."}, "--json='.' is a folder; give a file in it"),
        refusal(
            {"json": "/dev/null/a"},
            "--json='/dev/null/a' can't be written: '/dev/null' is not a fold",
        ),
        refusal(
            {"json": "foo://a/b"},
            "--json='foo://a/b': this TensorFlow can't open foo:// paths",
            "give one of those",
        ),
        refusal(
            {"html": "/dev/null/a"},
            "--html='/dev/null/a' can't be written: '/dev/null' is not a fold",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(files, changed, refused):
    ended = preflight({**files, **changed})
    refused.output(ended)
    assert ended.exit_code == 2 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1 and len(ended.stderr) < 500, ended.stderr


def test_the_input_of_a_module_is_measured_and_a_profile_written(files, tmp_path):
    path = pathlib.Path(files["module_file"])
    path.write_text(MODEL + INPUT, encoding="utf-8")
    out = str(tmp_path / "report.json")
    given = {"feature_spec": None, "measure_input": "0.5", "profile": str(tmp_path / "profile")}
    ended = preflight({**files, **given, "json": out})
    assert ended.exit_code == 0, ended.output
    assert "The training's input" in ended.stdout and "limit: the hosts deliver" in ended.stdout
    report = read_json(out)
    assert report.input.row_bytes == 4 * 8192 + 4 and report.input.rows % 64 == 0
    written = sorted(each.name for each in (tmp_path / "profile").rglob("*.pb"))
    assert written == ["preflight.xplane.pb", "train-v5e_2x4(1).hlo_proto.pb"]


@row(
    "preflight",
    "a model_fn that divides by 0",
    "small_model.py fails: ZeroDivisionError: division by zero (at ",
    "small_model.py:18: optimizer = CrossShardOptimizer(",
)
def test_an_error_in_the_model_names_its_line(files, refused):
    path = pathlib.Path(files["module_file"])
    path.write_text(MODEL.replace('params["rate"]', "1 / 0"), encoding="utf-8")
    ended = preflight(files)
    refused.output(ended)
    assert ended.exit_code == 2 and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "sizes",
    [
        case(
            "preflight",
            f"`--batch_size={sizes}`",
            f"Error: Invalid value for '--batch_size': '{sizes}': give integers from 1 to ",
            "such as 1024 or 1024,2048",
            values=sizes,
        )
        for sizes in ("0", "64,x", "-8", "1e3", "", f"{2**63}")
    ],
)
def test_sizes_that_are_none_are_refused(sizes, refused):
    ended = preflight({"tpu": "v5e:2x4", "batch_size": sizes})
    refused.output(ended)
    assert ended.exit_code == 2


@pytest.mark.parametrize("before", ["v1 = ", "    kernel = "])
def test_a_module_that_exits_is_no_success(files, before):
    path = pathlib.Path(files["module_file"])
    indent = before[: len(before) - len(before.lstrip())]
    text = MODEL.replace(f"\n{before}", f"\n{indent}raise SystemExit(0)\n{before}")
    path.write_text(text, encoding="utf-8")
    line = text.splitlines().index(f"{indent}raise SystemExit(0)") + 1
    ended = preflight(files)
    assert ended.exit_code == 2
    message = f"the module '{path}' ended the process by SystemExit(0) at {path}:{line}; raise an exception"
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_function_by_its_module_and_name(tmp_path, monkeypatch):
    (tmp_path / "own_program.py").write_text(
        "import tensorflow as tf\n"
        "kernel = tf.Variable(tf.zeros([128, 256]))\n"
        "@tf.function(input_signature=[tf.TensorSpec([None, 128])])\n"
        "def step(x):\n"
        "    return tf.matmul(x, kernel)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    ended = preflight({"function": "own_program:step", "tpu": "v5e:2x4", "batch_size": "64"})
    assert ended.exit_code == 0, ended.output
    assert "Preflight of step for v5e:2x4  8 replicas" in ended.stdout
    assert "✓ function, 64 rows: compiles and fits" in ended.stdout

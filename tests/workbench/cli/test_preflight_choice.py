"""What `tfx-tpu-trainer preflight` refuses in a project, with a price and in a sweep; which slice it names."""

import json
import pathlib

import pytest

from tests.bad_input import case
from tests.workbench.cli.preflight_command import options_of_files, preflight


@pytest.fixture
def files(tmp_path):
    return options_of_files(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        case(
            "preflight",
            "`--pipeline=taxi`, without a slice in the config",
            "Error: no slice is named: give --tpu v5e:2x4, or set trainer.tpu in the config",
            values={},
        ),
        case(
            "preflight",
            "`--pipeline=taxi --tpu=v5e:2x4` before the first run",
            "Error: the model's input is unknown: no run has completed Transform yet, and the "
            "project keeps no schema; run the project once (tfx-tpu-trainer run",
            values={"tpu": "v5e:2x4"},
        ),
        case(
            "preflight",
            "`--pipeline=taxi --measure_input=9`",
            "Error: --measure_input reads a module's own input_fn; a project's training measures its",
            values={"tpu": "v5e:2x4", "measure_input": "9"},
        ),
        case(
            "preflight",
            "`--pipeline=taxi --module=model`",
            "Error: --module names a model, and so does a project; give one of them",
            values={"module": "model"},
        ),
        case(
            "preflight",
            "`--pipeline=no`",
            "Error: unknown pipeline 'no'; pipelines here: digits, penguin, taxi",
            values={"pipeline": "no"},
        ),
        *(
            case(
                "preflight",
                f"`--pipeline=taxi --choose{given}`",
                "Error: ",
                says,
                values={"choose": True, **changed},
            )
            for given, changed, says in (
                ("", {}, "--choose needs --price: give a price file"),
                (
                    " --train_steps=9 --price=prices.json`, as any option that the config is about",
                    {"train_steps": "9", "price": "prices.json"},
                    "--train_steps can't be combined with --choose, which uses the config's own value: set",
                ),
                (
                    " --price=no.json",
                    {"price": "no.json"},
                    "--price no.json can't be read: No such file",
                ),
                (
                    " --tpu=v5e:4x8 --price=prices.json`, where 32 does not divide a batch size of the config",
                    {"price": "prices.json", "tpu": "v5e:4x8", "set_eval_batch_size": "100"},
                    "v5e:4x8 does not suit the config: trainer: eval_batch_size 100 must be divisible by the 32",
                ),
                (
                    " --price=prices.json`, where the config has a reservation",
                    {"price": "prices.json", "tpu": "v5e:2x4", "set_tpu": "{slice_name: v5e:8, reservation: ours}"},
                    "trainer.tpu.reservation='ours': a reserved slice is paid for already; remove the reservation",
                ),
            )
        ),
    ],
)  # fmt: skip
def test_what_a_project_can_t_do_ends_with_exit_code_2(tmp_path, options, refused):
    config = tmp_path / "config.yaml"
    text = pathlib.Path("pipelines/taxi/config.yaml").read_text("utf-8")
    text = text.replace("root: runs/taxi", f"root: {tmp_path}")
    options = {**options}
    for name in ("eval_batch_size", "tpu"):
        if (value := options.pop(f"set_{name}", None)) is not None:
            text = text.replace("trainer:", f"trainer:\n  {name}: {value}")
            text = text.replace("  eval_batch_size: 512\n", "")
    config.write_text(text, "utf-8")
    if options.get("price") == "prices.json":
        options["price"] = str(tmp_path / "prices.json")
        (tmp_path / "prices.json").write_text(
            '{"currency": "USD", "chip_hour": {"v5e": 1}}', "utf-8"
        )
    flags = ["--choose"] * options.pop("choose", False)
    ended = preflight({"pipeline": "taxi", "config": str(config), **options}, *flags)
    refused.output(ended)
    assert ended.exit_code == 2, ended.output
    assert config.read_text("utf-8") == text


_WITH_SERVE = {"steps": "serve", "saved_model": "a"}


@pytest.mark.parametrize(
    ("changed", "flags"),
    [
        *(
            case(
                "preflight",
                f"`--price prices.json` {given}",
                "Error: ",
                *says,
                values=(changed, []),
            )
            for given, changed, *says in (
                ("alone", {}, "Give the training's length: --rows_per_epoch, or --train_steps"),
                (
                    "`--epochs=2 --train_steps=9`",
                    {"epochs": "2", "train_steps": "9"},
                    "one of --epochs and --train_steps, not both",
                ),
                (
                    "`--epochs=2`",
                    {"epochs": "2"},
                    "--epochs needs --rows_per_epoch, the rows of the",
                ),
                (
                    "`--train_steps=9 --deadline=soon`",
                    {"train_steps": "9", "deadline": "soon"},
                    "--deadline 'soon': give a duration, such as 4h, 90m or 1h30m",
                ),
                (
                    "without a price for the slice's chips",
                    {"train_steps": "9", "tpu": "v6e:2x2"},
                    "prices.json has no price for v6e, the chips of v6e:2x2: add it",
                ),
                (
                    "`--steps=eval`",
                    {"steps": "eval"},
                    "--price needs the train step: include train in",
                ),
            )
        ),
        *(
            case("preflight", f"`--sweep {given}`", "Error: ", says, values=(changed, ["--sweep"]))
            for given, changed, says in (
                (
                    "--steps=serve",
                    _WITH_SERVE,
                    "--sweep compiles only train, eval and predict: leave",
                ),
                (
                    "--tpu=v5e:2x4,no",
                    {"tpu": "v5e:2x4,no"},
                    "unknown generation 'no'; use one of v2",
                ),
            )
        ),
    ],
)
def test_what_a_price_needs_and_no_sweep_takes(files, tmp_path, changed, flags, refused):
    prices = tmp_path / "prices.json"
    prices.write_text('{"currency": "USD", "chip_hour": {"v5e": 1.2, "v5p": 4.2}}', "utf-8")
    price = {} if flags else {"price": str(prices)}
    ended = preflight({**files, **price, **changed}, *flags)
    refused.output(ended)
    assert ended.exit_code == 2 and ended.stderr.count("\n") == 1


def test_a_sweep_names_the_cheapest_slice_that_meets_the_deadline(files, tmp_path):
    prices, out = tmp_path / "prices.json", tmp_path / "sweep.json"
    prices.write_text('{"currency": "USD", "chip_hour": {"v5e": 1.0, "v5p": 4.0}}', "utf-8")
    priced = {"price": str(prices), "train_steps": "1000000", "deadline": "30d", "json": str(out)}
    page = tmp_path / "sweep.html"
    given = {**files, **priced, "tpu": "v5e:2x4,v5e:1x1", "html": str(page), "start_up": "6m"}
    ended = preflight(given, "--sweep")
    assert ended.exit_code == 0, ended.output
    assert "Cost of the training, with 6 min of start-up" in ended.stdout
    # A step on one chip takes as long as it likes: the slice of eight costs eight times as much.
    assert "The choice: v5e:1x1, " in ended.stdout and ": the cheapest within 30 d" in ended.stdout
    assert "the cheapest within 30 d" in page.read_text("utf-8")
    costs = json.loads(out.read_text("utf-8"))["costs"]
    assert [each["hour_price"] for each in costs] == [8.0, 1.0]
    for each in costs:
        seconds = 360 + each["step_seconds"] * 1e6
        assert each["cost"] == pytest.approx(seconds / 3600 * each["hour_price"])

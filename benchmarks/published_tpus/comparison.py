"""Compares published speeds with the bound and the estimate of the same steps."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Sequence

from benchmarks.published_tpus.models import RESNET_BLOCKS, Decoder
from benchmarks.published_tpus.programs import PROGRAMS, Compiled, compiled
from benchmarks.published_tpus.results import PUBLISHED, Published
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.hardware import Slice, find_slice
from tfx_tpu_trainer.preflight._hlo_cost import OpCost
from tfx_tpu_trainer.preflight._step_time import LINK_SHARE, ErrorSpread, estimate, matrix_share

RECORD = pathlib.Path(__file__).parent / "recorded.json"
"""The results of the last run with --record."""

# Flash attention computes large blocks on the diagonal completely: of 4 x 4, 10 of 16.
_CAUSAL = 0.625


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of one published result."""

    model: str
    slice_name: str
    chips: int
    source: str
    # Whether the estimate's shares were fitted to it.
    fitted: bool
    # HBM that the compiled program needs on a device, and its limit there.
    need_bytes: int
    limit_bytes: int
    # Whether the program is the whole step, or a part to be multiplied.
    whole: bool
    bound_seconds: float
    estimated_seconds: float
    published_seconds: float

    @property
    def error(self) -> float:
        """(estimate - published) / published."""
        return self.estimated_seconds / self.published_seconds - 1


def compare(published: Published) -> Comparison:
    """Compares one result; compiles its program if necessary."""
    program = PROGRAMS[published.program]
    tpu_slice = find_slice(published.slice_name)
    made = compiled(published.program)
    if program.decoder is not None:
        bound, estimated = _decoder_seconds(program.decoder, made, tpu_slice)
    else:
        costs = scaled(made.costs, published)
        bound = _bound(costs, tpu_slice)
        estimated = estimate(costs, tpu_slice, num_replicas=program.replicas).step_seconds
    if published.step_seconds is not None:
        seconds = published.step_seconds
    else:
        assert published.chip_tflops is not None and program.decoder is not None
        seconds = program.decoder.model_flops / (published.chip_tflops * 1e12)
    return Comparison(
        model=published.model,
        slice_name=tpu_slice.name,
        chips=tpu_slice.num_chips,
        source=published.source,
        fitted=published.fitted,
        need_bytes=made.need_bytes,
        limit_bytes=made.limit_bytes,
        whole=program.decoder is None and published.pixels == 1 and not _is_deeper(published),
        bound_seconds=bound,
        estimated_seconds=estimated,
        published_seconds=seconds,
    )


def compare_all() -> list[Comparison]:
    """Compares all published results."""
    return [compare(each) for each in PUBLISHED]


def spread(rows: Sequence[Comparison]) -> ErrorSpread:
    """Returns the errors on results to which nothing was fitted."""
    errors = [each.error for each in rows if not each.fitted]
    deciles = statistics.quantiles(errors, n=10, method="inclusive")
    return ErrorSpread(
        results=len(rows),
        held_out=len(errors),
        low=round(deciles[0], 2),
        median=round(statistics.median(errors), 2) + 0.0,
        high=round(deciles[-1], 2),
    )


def write(rows: Sequence[Comparison]) -> None:
    """Writes the record."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(each)) for each in rows)
    write_whole(str(RECORD), f"[\n{lines}\n]\n")


def read() -> list[Comparison]:
    """Reads the record."""
    return [Comparison(**each) for each in json.loads(RECORD.read_text())]


def table(rows: Sequence[Comparison]) -> str:
    """Returns the comparisons as a Markdown table."""
    lines = [
        "| model | slice | compiles | HBM | bound | estimate | published | error | used | source |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in rows:
        lines.append(
            f"| {each.model} | {each.slice_name} | {'whole' if each.whole else 'a part'} "
            f"| {each.need_bytes / 2**30:.1f} of {each.limit_bytes / 2**30:.1f} GiB "
            f"| {_seconds(each.bound_seconds)} | {_seconds(each.estimated_seconds)} "
            f"| {_seconds(each.published_seconds)} | {each.error:+.0%} "
            f"| {'fitted' if each.fitted else 'held out'} | {each.source} |"
        )
    return "\n".join(lines)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _is_deeper(published: Published) -> bool:
    return published.blocks is not None and published.blocks != RESNET_BLOCKS[50]


def scaled(costs: Sequence[OpCost], published: Published) -> list[OpCost]:
    """Repeats a ResNet-50's blocks for a deeper one, and enlarges its images."""
    found = []
    for cost in costs:
        times = 1.0
        for group, blocks in enumerate(published.blocks or ()):
            if f"group_{group}_other" in cost.op_name:
                times = (blocks - 1) / (RESNET_BLOCKS[50][group] - 1)
        more = times * (1 if cost.collective_bytes else published.pixels)
        found.append(
            dataclasses.replace(
                cost,
                flops=more * cost.flops,
                hbm_bytes=round(more * cost.hbm_bytes),
                collective_bytes=round(times * cost.collective_bytes),
            )
        )
    return found


def _bound(costs: Sequence[OpCost], tpu_slice: Slice) -> float:
    """The lower bound, from operations and bytes alone: sums over replicas are shorter here."""
    chip = tpu_slice.chip
    flops = sum(each.runs * each.flops for each in costs)
    moved = sum(each.runs * each.hbm_bytes for each in costs)
    return chip.devices * max(flops / (chip.bf16_tflops * 1e12), moved / (chip.hbm_gb_per_s * 1e9))


def _decoder_seconds(shape: Decoder, made: Compiled, tpu_slice: Slice) -> tuple[float, float]:
    """Returns bound and estimate of a step with one compiled layer."""
    chip = tpu_slice.chip
    peak = chip.bf16_tflops * 1e12
    reached = matrix_share(chip.generation) * peak
    layer = sum(each.runs * each.flops for each in made.costs)
    attention = shape.attention_flops
    # The half that a causal mask excludes need not be computed.
    logits = 6.0 * shape.tokens * shape.vocabulary * shape.width
    bound = (shape.layers * layer + attention / 2 + logits) / peak
    passes = 1 + shape.recomputed / 3
    one = estimate(made.costs, tpu_slice, num_replicas=1).step_seconds
    again = 1 + (1 / 3 if shape.recomputes_attention else 0)
    computed = shape.layers * one * passes + (_CAUSAL * again * attention + logits) / reached
    # Each chip gathers the weights for both passes and scatters the gradients' sums, 2 bytes each, in parallel with the
    # computation.
    links = LINK_SHARE * chip.ici_gb_per_s * 1e9
    sent = 3 * 2 * shape.parameters / shape.tensor_parallel / links
    # Chips that share a layer gather and scatter its activations on one axis of the torus, twice in each pass; the next
    # product waits for that.
    axes = 3 if tpu_slice.topology.count("x") == 2 else 2
    shared = shape.tensor_parallel
    activations = 2.0 * shape.tokens * shared * shape.width * (shared - 1) / shared
    exchanged = 8 * shape.layers * activations / (links / axes)
    # The chip's share of variables and two moments in float32, read and written.
    updated = 28 * shape.parameters / tpu_slice.num_chips / (chip.hbm_gb_per_s * 1e9)
    return bound, max(computed, sent) + exchanged + updated

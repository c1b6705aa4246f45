"""The generations of TPU chips.

Peak rates, memory and links are those that Google publishes for a chip
(https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and its page for each generation).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """A generation of TPU chips.

    Attributes:
        generation: Its name, such as `"v5e"`.
        devices: TPU devices that TensorFlow sees of a chip: 2 cores on v2 and v3, and one where the
            chip has one core or its two act as one (v4 and v5p).
        hbm_gib: Memory of a chip, GiB.
        program_hbm_gib: Memory that a program may use on one TPU device, GiB; the system uses the rest. As the TPU
            compiler (libtpu 0.0.21) states it.
        bf16_tflops: Peak rate of a chip in bfloat16, 10^12 operations a second.
        hbm_gb_per_s: Bandwidth of its memory, 10^9 bytes a second.
        ici_gb_per_s: Bandwidth of all its links to other chips in one direction, 10^9 bytes a
            second: half of what Google's pages call bidirectional.
        dcn_gbit_per_s: Bandwidth of the data center's network for a chip's share of its machine, 10^9 bits a
            second: what joins several slices. As Google's pages say for v5p, v6e and tpu7x; of v5e, what
            a pod has divided by its 256 chips. `None` where it is not published.
        session_training: Whether its runtimes train in a `Session`. On newer ones that is reported
            to crash (TensorFlow issue 90807), and `TPUStrategy` is the way.
        sparse_cores: SparseCores of a chip, which look embeddings up; 0 where it has none. Of v4, v5p and v6e
            as OpenXLA's page on SparseCore has them (https://openxla.org/xla/sparsecore), of v5p on Google's
            page for it too; of tpu7x, two for each of its devices, as jax-tpu-embedding counts them.
        runs_tensorflow: Whether TensorFlow is supported on it; of tpu7x Google's page says that it is not.
    """

    generation: str
    devices: int
    hbm_gib: int
    program_hbm_gib: float
    bf16_tflops: float
    hbm_gb_per_s: float
    ici_gb_per_s: float
    dcn_gbit_per_s: float | None
    sparse_cores: int
    session_training: bool
    runs_tensorflow: bool

    @property
    def program_hbm_bytes(self) -> int:
        """Memory that a program may use on one TPU device, in bytes."""
        return int(self.program_hbm_gib * 2**30)


def _chip(
    generation: str,
    devices: int,
    hbm_gib: int,
    program_hbm_gib: float,
    bf16_tflops: float,
    hbm_gb_per_s: float,
    ici_gb_per_s: float,
    dcn_gbit_per_s: float | None,
    sparse_cores: int,
) -> Chip:
    return Chip(
        generation=generation,
        devices=devices,
        hbm_gib=hbm_gib,
        program_hbm_gib=program_hbm_gib,
        bf16_tflops=bf16_tflops,
        hbm_gb_per_s=hbm_gb_per_s,
        ici_gb_per_s=ici_gb_per_s,
        dcn_gbit_per_s=dcn_gbit_per_s,
        sparse_cores=sparse_cores,
        session_training=generation in ("v2", "v3", "v4"),
        runs_tensorflow=generation != "tpu7x",
    )


CHIPS: Mapping[str, Chip] = {
    chip.generation: chip
    for chip in (
        _chip("v2", 2, 16, 7.48, 46, 700, 248, None, 0),
        _chip("v3", 2, 32, 15.48, 123, 900, 328, None, 0),
        _chip("v4", 1, 32, 30.75, 275, 1228, 300, None, 4),
        _chip("v5e", 1, 16, 15.75, 197, 819, 200, 25, 0),
        _chip("v5p", 1, 95, 95.74, 459, 2765, 600, 50, 4),
        _chip("v6e", 1, 32, 31.25, 918, 1640, 448, 100, 2),
        # Two devices a chip, as its compiler lists them; what a program may use is that of libtpu 0.0.42.1.
        _chip("tpu7x", 2, 192, 94.74, 2307, 7380, 600, 100, 4),
    )
}
"""Generation -> chip."""

"""Defines TpuSpec, a pipeline's request for a TPU."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from typing import Any

import pydantic

from tfx_tpu_trainer.hardware._slices import Slice, find_slice, known_slices

Name = typing.Annotated[str, pydantic.Field(min_length=1)]

_FLEX_START = "cloud.google.com/gke-flex-start"

# https://cloud.google.com/kubernetes-engine/docs/concepts/dws: v3 and v4 are not supported.
_NO_FLEX_START = ("v3", "v4")


class TpuSpec(pydantic.BaseModel):
    """A TPU slice and how it is provided; its values are checked when the pipeline is compiled.

    Examples:
        >>> from tfx_tpu_trainer import TpuSpec
        >>> spec = TpuSpec.parse("v5e:2x4", spot=True)
        >>> spec.num_replicas()
        8
        >>> spec.resource_limits()
        {'google.com/tpu': 8}
        >>> spec.node_selector()["cloud.google.com/gke-tpu-topology"]
        '2x4'

    Attributes:
        slice_name: Generation and topology, such as `"v5e:2x4"`, or generation and number of
            chips, such as `"v5e:8"`.
        hosts: Machines of the slice. Defaults to `None`: the fewest possible. A v5e 2x4, for example, is one machine of
            eight chips or two of four.
        spot: Whether it may be taken away at any time, for a lower price. Defaults to `False`.
        flex_start: Whether the request waits until the slice is free, and then keeps it for up to seven days, for a
            lower price. Excludes `spot`. Defaults to `False`.
        reservation: Name of a reservation to use; excludes `spot` and `flex_start`. Defaults to `None`.
        runtime_image: Container image of the TPU workers. Defaults to `None`: the pipeline's.
        zone: Its zone, such as `"us-central1-a"`. Defaults to `None`: any.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    slice_name: Name
    hosts: typing.Annotated[int, pydantic.Field(gt=0)] | None = None
    spot: bool = False
    flex_start: bool = False
    reservation: Name | None = None
    runtime_image: Name | None = None
    zone: Name | None = None

    @classmethod
    def parse(cls, slice_name: str, **options: Any) -> TpuSpec:
        """Makes a spec; errors are one line that names the value and the fix.

        Args:
            slice_name: See the class.
            **options: The other attributes.

        Returns:
            The spec.

        Raises:
            ValueError: If a value is invalid.
        """
        try:
            return cls(slice_name=slice_name, **options)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            message = first["msg"].removeprefix("Value error, ")
            if first["type"] == "value_error":
                raise ValueError(message) from None
            where = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                message = f"unknown attribute; use {', '.join(cls.model_fields)}"
            if first["type"] == "string_too_short":
                message = (
                    "give a name such as 'v5e:2x4'" if where == "slice_name" else "leave it out"
                )
            raise ValueError(f"TpuSpec {where}={first['input']!r}: {message}.") from None

    @classmethod
    def read(cls, value: TpuSpec | Mapping[str, Any] | str) -> TpuSpec:
        """Makes a spec from any accepted form.

        Args:
            value: A spec, a slice's name such as `"v5e:2x4"`, or all attributes as a mapping or
                as its JSON text.

        Returns:
            The spec.

        Raises:
            ValueError: If a value is invalid.
        """
        if isinstance(value, TpuSpec):
            return value
        if isinstance(value, str) and value.lstrip().startswith("{"):
            text = value
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"TPU {text[:200]!r} is not valid JSON ({error}): give a slice such as "
                    'v5e:2x4, or JSON such as {"slice_name": "v5e:2x4", "spot": true}.'
                ) from None
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, Mapping) and "slice_name" in value:
            return cls.parse(**value)
        raise ValueError(
            f"TPU {value!r} names no slice: give a name such as 'v5e:2x4', or a dict such as "
            "{'slice_name': 'v5e:2x4', 'spot': True}."
        )

    def to_json(self) -> str:
        """Returns the attributes that differ from their defaults as a JSON string; `read` reads it."""
        return json.dumps(self.model_dump(exclude_defaults=True), separators=(",", ":"))

    @pydantic.model_validator(mode="after")
    def _check(self) -> TpuSpec:
        found = find_slice(self.slice_name)
        forms = [each.hosts for each in known_slices() if each.name == found.name]
        if self.hosts is not None and self.hosts not in forms:
            raise ValueError(
                f"TPU {self.slice_name!r} has no form with {self.hosts} hosts, only with "
                f"{' or '.join(map(str, forms))}."
            )
        ways = [
            f"{name}={value!r}"
            for name in ("spot", "flex_start", "reservation")
            if (value := getattr(self, name))
        ]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} exclude each other: leave one out.")
        return self

    @property
    def tpu_slice(self) -> Slice:
        """The slice."""
        found = find_slice(self.slice_name)
        if self.hosts is None or self.hosts == found.hosts:
            return found
        return next(
            each for each in known_slices() if each.name == found.name and each.hosts == self.hosts
        )

    def num_replicas(self, num_cores_per_replica: int | None = None) -> int:
        """Returns the number of a model's copies on the slice: `TPUConfig.num_shards`.

        Args:
            num_cores_per_replica: TPU devices of each copy. Defaults to `None`: one.

        Raises:
            ValueError: If copies of that size do not fill the slice.
        """
        devices, each = self.tpu_slice.num_devices, num_cores_per_replica or 1
        if each > devices:
            raise ValueError(
                f"num_cores_per_replica={each} is more than the {devices} TPU devices of "
                f"{self.tpu_slice.name}: use a larger slice, or at most {devices}."
            )
        if devices % each:
            fitting = [size for size in (1, 2, 4, 8, 16, 32, 64, 128) if devices % size == 0]
            raise ValueError(
                f"num_cores_per_replica={each} does not use up the {devices} TPU devices of "
                f"{self.tpu_slice.name}: use one of {fitting}."
            )
        return devices // each

    def check_batch_size(
        self,
        batch_size: int,
        *,
        num_cores_per_replica: int | None = None,
        num_slices: int = 1,
        name: str = "batch size",
    ) -> None:
        """Checks that a global batch size can be split over the slice, or over several like it.

        Args:
            batch_size: Rows of a step over all replicas.
            num_cores_per_replica: See `num_replicas`.
            num_slices: Slices that share the batch. Defaults to 1.
            name: The name of the batch size, for the error.

        Raises:
            ValueError: If the replicas do not divide the batch size; names the nearest sizes that they divide.
        """
        replicas = self.num_replicas(num_cores_per_replica) * num_slices
        if batch_size % replicas:
            slices = f"{num_slices} slices of " if num_slices > 1 else ""
            below = batch_size // replicas * replicas
            nearest = [size for size in (below, below + replicas) if size]
            raise ValueError(
                f"{name} {batch_size} must be divisible by the {replicas} replicas of "
                f"{slices}{self.tpu_slice.name}: {' or '.join(map(str, nearest))} would be."
            )

    def check_num_shards(
        self, num_shards: int | None, *, num_cores_per_replica: int | None = None
    ) -> None:
        """Checks that a number of replicas, if given, matches the slice.

        Args:
            num_shards: The number.
            num_cores_per_replica: See `num_replicas`.

        Raises:
            ValueError: If the slice has another number.
        """
        replicas = self.num_replicas(num_cores_per_replica)
        if num_shards not in (None, replicas):
            cores = f" of {num_cores_per_replica} cores each" if num_cores_per_replica else ""
            raise ValueError(
                f"num_shards={num_shards} contradicts tpu={self.slice_name!r}, which has "
                f"{replicas} replicas{cores}: leave num_shards out."
            )

    def tpu_config(self, num_cores_per_replica: int | None = None) -> dict[str, int | None]:
        """Returns the slice's keyword arguments for `TPUConfig`."""
        return {
            "num_shards": self.num_replicas(num_cores_per_replica),
            "num_cores_per_replica": num_cores_per_replica,
        }

    def node_selector(self) -> dict[str, str]:
        """Returns the labels of the GKE nodes that a pod needs.

        Raises:
            ValueError: If GKE has no nodes with this slice, or does not provide them in this way.
        """
        found = self.tpu_slice
        if found.gke_accelerator is None:
            raise ValueError(
                f"GKE has no nodes with {found.name}: use v3 or newer, or Vertex AI with "
                f"machine type {found.vertex_machine_type!r}."
            )
        labels = {
            "cloud.google.com/gke-tpu-accelerator": found.gke_accelerator,
            "cloud.google.com/gke-tpu-topology": found.topology,
        }
        if self.flex_start and found.chip.generation in _NO_FLEX_START:
            raise ValueError(
                f"flex_start=True: GKE has no flex-start nodes with {found.name}: use v5e or newer, or "
                "leave flex_start out."
            )
        labels.update(dict.fromkeys(self._provisioning_keys(), "true"))
        if self.reservation:
            labels["cloud.google.com/reservation-name"] = self.reservation
            labels["cloud.google.com/reservation-affinity"] = "specific"
        if self.zone:
            labels["topology.kubernetes.io/zone"] = self.zone
        return labels

    def tolerations(self) -> list[dict[str, str]]:
        """Returns the taints that a pod must tolerate on nodes that are provided in this way.

        GKE taints Spot nodes if a node pool requests it, and Autopilot always; the same holds for flex-start nodes.
        """
        return [
            {"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
            for key in self._provisioning_keys()
        ]

    def _provisioning_keys(self) -> list[str]:
        """Returns the key of both the label and the taint of nodes with this kind of provisioning."""
        ways = {"cloud.google.com/gke-spot": self.spot, _FLEX_START: self.flex_start}
        return [key for key, is_asked_for in ways.items() if is_asked_for]

    def resource_limits(self) -> dict[str, int]:
        """Returns a pod's resource limits, one pod per host."""
        return {"google.com/tpu": self.tpu_slice.chips_per_host}

    def vertex_machine_spec(self) -> dict[str, Any]:
        """Returns the `machine_spec` of a Vertex worker pool.

        Raises:
            ValueError: If Vertex has no machines with this slice.
        """
        found = self.tpu_slice
        if found.vertex_machine_type is None:
            raise ValueError(
                f"Vertex AI has no machines with {found.name}: use v2, v3, v5e, v5p or v6e, or GKE "
                f"with machine type {found.gke_machine_type!r}."
            )
        if found.vertex_accelerator_type is not None:
            return {
                "machine_type": found.vertex_machine_type,
                "accelerator_type": found.vertex_accelerator_type,
                "accelerator_count": found.num_devices,
            }
        return {"machine_type": found.vertex_machine_type, "tpu_topology": found.topology}

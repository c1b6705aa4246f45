"""The configuration of a TPUEstimator's run."""

from __future__ import annotations

from typing import Any, cast

import tensorflow as tf

from tfx_tpu_trainer.estimator import _run_config
from tfx_tpu_trainer.estimator._task_environment import TaskType
from tfx_tpu_trainer.estimator.tpu._tpu_config import TPUConfig

v1 = tf.compat.v1


class RunConfig(_run_config.RunConfig):
    """A `RunConfig` with TPU support; mirrors `tf.compat.v1.estimator.tpu.RunConfig`.

    Examples:
        Eight cores, emulated on this CPU:

        >>> from tfx_tpu_trainer.estimator import tpu
        >>> config = tpu.RunConfig(
        ...     model_dir="runs/taxi",
        ...     master="emulated",
        ...     tpu_config=tpu.TPUConfig(num_shards=8, iterations_per_loop=100),
        ... )
        >>> config.master, config.evaluation_master
        ('emulated', 'emulated')
        >>> config.tpu_config.num_shards
        8
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        **kwargs: Any,
    ) -> None:
        """Checks and keeps the configuration.

        Args:
            tpu_config: How the model runs on TPU cores. Defaults to `TPUConfig()`.
            evaluation_master: Address of the evaluation session's master. Defaults to `None`: `master`, unless
                TF_CONFIG names another one.
            master: Address of the training session's master; excludes `cluster`. Defaults to
                `None`: that of TF_CONFIG, or this process.
            cluster: Resolver of the TPU cluster. Defaults to `None`.
            **kwargs: Arguments of `tfx_tpu_trainer.estimator.RunConfig`.

        Raises:
            ValueError: If both master and cluster are given, or cluster with a session_config
                that has a cluster_def.
            TypeError: If an argument has the wrong type.
        """
        super().__init__(**kwargs)
        self._tpu_config = _checked_tpu_config(tpu_config)
        self._cluster = cluster
        for name, address in (("master", master), ("evaluation_master", evaluation_master)):
            if not isinstance(address, str | None):
                raise TypeError(
                    f"{name} must be the address of a session, such as 'grpc://10.0.0.1:8470'; got {address!r}."
                )
        if not all(hasattr(cluster, part) for part in ("master", "cluster_spec")) and cluster:
            raise TypeError(
                f"cluster must be a tf.distribute.cluster_resolver.ClusterResolver; got {cluster!r}."
            )
        if master is not None and cluster is not None:
            raise ValueError(f"Both master and cluster are set: {master!r} and {cluster!r}.")
        if master is not None:
            self._master = master
        elif cluster is not None:
            self._master = cluster.master()
        if evaluation_master is not None:
            self._evaluation_master = evaluation_master
        elif not self._evaluation_master and self._task_type != TaskType.EVALUATOR:
            self._evaluation_master = self._master
        if cluster is not None:
            self._merge_cluster(cluster)

    def _given(self) -> dict[str, Any]:
        given = super()._given()
        if self._tpu_config != TPUConfig():
            given["tpu_config"] = self._tpu_config
        if self._cluster is not None:
            given["cluster"] = self._cluster
        elif self._master:
            given["master"] = self._master
        if self._evaluation_master != self._master:
            given["evaluation_master"] = self._evaluation_master
        return given

    def _configure_sessions_of_a_cluster(self) -> None:
        """Does nothing: a TPU run is one graph over all hosts, without filters."""

    def _merge_cluster(self, cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
        self._cluster_spec = cluster.cluster_spec()
        if self._values["session_config"] is None:
            self._values["session_config"] = v1.ConfigProto(
                allow_soft_placement=True, isolate_session_state=True
            )
        session_config = self._values["session_config"]
        if session_config.HasField("cluster_def"):
            raise ValueError(
                "You cannot provide a ClusterResolver and session_config.cluster_def: leave the "
                "cluster_def out."
            )
        if self._cluster_spec:
            session_config.cluster_def.CopyFrom(self._cluster_spec.as_cluster_def())

    @property
    def tpu_config(self) -> TPUConfig:
        """How the model runs on TPU cores."""
        return self._tpu_config

    @property
    def cluster(self) -> tf.distribute.cluster_resolver.ClusterResolver | None:
        """Resolver of the TPU cluster."""
        return self._cluster

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a changed deep copy; `tpu_config` may be replaced too."""
        tpu_config = _checked_tpu_config(kwargs.pop("tpu_config", self._tpu_config))
        changed = cast(RunConfig, super().replace(**kwargs))
        changed._tpu_config = tpu_config
        return changed


def _checked_tpu_config(tpu_config: Any) -> TPUConfig:
    if not isinstance(tpu_config, TPUConfig | None):
        raise TypeError(
            f"tpu_config must be a TPUConfig of tfx_tpu_trainer.estimator.tpu; got {tpu_config!r}."
        )
    return tpu_config or TPUConfig()

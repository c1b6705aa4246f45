"""Describes a spec's embeddings for `tf.tpu.experimental.embedding`: tables, features, optimizers."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu.embedding.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    OptimizationParameters,
    StochasticGradientDescentParameters,
)
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingPlan
from tfx_tpu_trainer.estimator.tpu.embedding.table_update import parameters_of
from tfx_tpu_trainer.hardware import CHIPS

_embedding = tf.tpu.experimental.embedding

SLOTS: Mapping[type[OptimizationParameters], Mapping[str, str]] = {
    StochasticGradientDescentParameters: {},
    AdagradParameters: {"accumulators": "Adagrad"},
    AdamParameters: {"momenta": "Adam", "velocities": "Adam_1"},
    FtrlParameters: {"accumulators": "Ftrl", "linears": "Ftrl_1"},
}
"""Parameters with which TPUs train -> a slot's name there -> the end of its name in checkpoints."""

_MOST_IDS = 2**31 - 1


class StepRates:
    """A step's learning rates, for optimizers that call a function without arguments."""

    # TensorFlow calls such a function while it traces a step; the global step is then the one that `at` has set.

    def __init__(self) -> None:
        self._step: tf.Tensor | None = None
        self._functions: dict[Any, Callable[[], tf.Tensor]] = {}

    @contextlib.contextmanager
    def at(self, step: tf.Tensor) -> Iterator[None]:
        """Sets the step of the rates."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def rate(
        self, parameters: OptimizationParameters, rate_fn: Callable[[tf.Tensor], Any] | None
    ) -> float | Callable[[], tf.Tensor]:
        """Returns a table's rate: a number, or a function shared by all tables with that rate."""
        # Adam's rate includes the correction of its moments' bias, which embedding hardware omits: see TensorFlow's
        # optimization_parameters.proto.
        # TensorFlow compares functions by identity: tables that share a rate must get the same function object, or each
        # counts as its own learning rate. So functions are cached by what they depend on.
        betas = None
        if isinstance(parameters, AdamParameters):
            betas = parameters.beta1, parameters.beta2
        elif rate_fn is None:
            return parameters.learning_rate
        key = (parameters.learning_rate if rate_fn is None else rate_fn, betas)
        if key not in self._functions:

            def function() -> tf.Tensor:
                step = self._step
                assert step is not None
                base = parameters.learning_rate if rate_fn is None else rate_fn(step)
                rate = tf.cast(base, tf.float32)
                if betas is None:
                    return rate
                number = tf.cast(step + 1, tf.float32)
                return rate * tf.sqrt(1 - betas[1] ** number) / (1 - betas[0] ** number)

            self._functions[key] = function
        return self._functions[key]


def make_feature_configs(
    plan: EmbeddingPlan, samples: Mapping[str, int], rates: StepRates
) -> dict[str, Any]:
    """Translates a plan."""
    # A feature of sequences has a sample for each position, so no configuration needs a `max_sequence_length`, which
    # means something else for each kind of input.
    tables = {
        name: _embedding.TableConfig(
            vocabulary_size=config.vocabulary_size,
            dim=config.dimension,
            # Every value is assigned from a checkpoint or the session.
            initializer=tf.zeros_initializer(),
            optimizer=_optimizer(
                parameters := parameters_of(plan, name),
                rates.rate(parameters, config.learning_rate_fn),
            ),
            # A sample of one id is its embedding, with any combiner.
            combiner=config.combiner or "sum",
            name=name,
        )
        for name, config in plan.tables.items()
        if plan.features_of(name)
    }
    return {
        name: _embedding.FeatureConfig(
            table=tables[config.table_id], output_shape=[samples[name]], name=name
        )
        for name, config in plan.features.items()
    }


def check_plan(plan: EmbeddingPlan, *, where: str) -> None:
    """Checks that a TPU can train a plan's tables."""
    for name, config in plan.tables.items():
        if not plan.features_of(name):
            continue
        parameters = parameters_of(plan, name)
        if type(parameters) not in SLOTS:
            known = ", ".join(kind.__name__ for kind in SLOTS)
            raise ValueError(
                f"Table {name} has {type(parameters).__name__}, for which "
                f"tf.tpu.experimental.embedding has no optimizer; on {where} use one of {known}, or "
                'emulate the cores (RunConfig(master="emulated")), which train with it.'
            )
        if isinstance(parameters, FtrlParameters) and not parameters.initial_accumulator_value:
            raise ValueError(
                f"Table {name}: initial_accumulator_value must be positive on {where}, got: "
                f"{parameters.initial_accumulator_value!r}."
            )
        if config.vocabulary_size > _MOST_IDS:
            raise ValueError(
                f"Table {name} has {config.vocabulary_size:,} rows; {where} number them with 32 "
                f"bits: use at most {_MOST_IDS:,}."
            )


def check_sparse_core_parameters(plan: EmbeddingPlan) -> None:
    """Checks that SparseCores can train with a plan's parameters."""
    # TensorFlow's `TPUEmbeddingV2` accepts these settings and ignores them.
    for name in plan.tables:
        if not plan.features_of(name):
            continue
        parameters = parameters_of(plan, name)
        ignored = [
            key
            for key in (
                "clip_weight_min",
                "clip_weight_max",
                "clip_gradient_min",
                "clip_gradient_max",
                "weight_decay_factor",
            )
            if getattr(parameters, key) is not None
        ]
        if isinstance(parameters, AdamParameters) and not parameters.lazy_adam:
            ignored.append("lazy_adam=False")
        if ignored:
            raise ValueError(
                f"Table {name}: SparseCores train without {', '.join(ignored)}, which "
                "tf.tpu.experimental.embedding.TPUEmbeddingV2 ignores; leave it out of the "
                "optimization parameters, or train on emulated cores or a v4."
            )


def check_memory(plan: EmbeddingPlan, *, devices: int, generations: Sequence[str]) -> None:
    """Checks that a TPU's memory can hold a plan's tables with their slots."""
    # A strategy's chips are unknown, so the largest are assumed. `preflight` reports what else is in their memory.
    parts = {
        name: config.vocabulary_size
        * config.dimension
        * tf.float32.size
        * (1 + len(SLOTS[type(parameters_of(plan, name))]))
        for name, config in plan.tables.items()
        if plan.features_of(name)
    }
    chip = max((CHIPS[each] for each in generations), key=lambda each: each.program_hbm_bytes)
    share = sum(parts.values()) / devices
    if share > chip.program_hbm_bytes:
        largest = max(parts, key=parts.__getitem__)
        raise ValueError(
            f"The tables of embedding_config_spec take {share / 2**30:,.1f} GiB on each of {devices} "
            f"TPU devices, with their optimizers' slots; even a {chip.generation} has "
            f"{chip.program_hbm_gib:g} GiB. The largest is {largest}, of "
            f"{plan.tables[largest].vocabulary_size:,} rows: use a larger slice, or fewer rows."
        )


def _optimizer(parameters: Any, rate: float | Callable[[], tf.Tensor]) -> Any:
    clips = (parameters.clip_gradient_min, parameters.clip_gradient_max)
    common = {
        "learning_rate": rate,
        "use_gradient_accumulation": parameters.use_gradient_accumulation,
        "clip_weight_min": parameters.clip_weight_min,
        "clip_weight_max": parameters.clip_weight_max,
        "weight_decay_factor": parameters.weight_decay_factor,
        "multiply_weight_decay_factor_by_learning_rate": (
            parameters.multiply_weight_decay_factor_by_learning_rate
        ),
        "clipvalue": None if clips == (None, None) else clips,
    }
    if isinstance(parameters, AdagradParameters):
        return _embedding.Adagrad(
            initial_accumulator_value=parameters.initial_accumulator, **common
        )
    if isinstance(parameters, AdamParameters):
        return _embedding.Adam(
            beta_1=parameters.beta1,
            beta_2=parameters.beta2,
            epsilon=parameters.epsilon,
            lazy_adam=parameters.lazy_adam,
            sum_inside_sqrt=parameters.sum_inside_sqrt,
            **common,
        )
    if isinstance(parameters, FtrlParameters):
        return _embedding.FTRL(
            learning_rate_power=parameters.learning_rate_power,
            l1_regularization_strength=parameters.l1_regularization_strength,
            l2_regularization_strength=parameters.l2_regularization_strength,
            beta=parameters.beta,
            initial_accumulator_value=parameters.initial_accumulator_value,
            allow_zero_accumulator=parameters.allow_zero_accumulator,
            **common,
        )
    return _embedding.SGD(**common)

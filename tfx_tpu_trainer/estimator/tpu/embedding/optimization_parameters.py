"""Defines the parameters of embedding tables' optimizers.

TensorFlow had these classes up to 2.15; names, arguments and defaults are the same. Shared parameters are keyword
arguments.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CommonParameters:
    """The parameters of every table's optimizer.

    Attributes:
        use_gradient_accumulation: On TPU hardware `False` applies the gradients of an id one after the other. Emulated
            cores always sum them. Defaults to `True`.
        clip_weight_min: Least value of a trained row's weights. Defaults to `None`, none.
        clip_weight_max: Largest value of a trained row's weights. Defaults to `None`, none.
        weight_decay_factor: Part of its weights that a trained row loses before each step.
            Defaults to `None`, nothing.
        multiply_weight_decay_factor_by_learning_rate: Whether that part is multiplied by the
            learning rate. Defaults to `None`, no.
        clip_gradient_min: Least value of a row's summed gradient. Defaults to `None`, none.
        clip_gradient_max: Largest value of a row's summed gradient. Defaults to `None`, none.
    """

    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        clips = self.clip_gradient_min is not None or self.clip_gradient_max is not None
        if clips and not self.use_gradient_accumulation:
            raise ValueError(
                "When using gradient clipping limits, gradient accumulation must be enabled: set "
                "use_gradient_accumulation=True, or leave out clip_gradient_min "
                f"({self.clip_gradient_min}) and clip_gradient_max ({self.clip_gradient_max})."
            )


@dataclasses.dataclass(frozen=True)
class OptimizationParameters(_CommonParameters):
    """Base of the parameter classes.

    Attributes:
        learning_rate: Learning rate of tables without their own.
    """

    learning_rate: float


@dataclasses.dataclass(frozen=True)
class StochasticGradientDescentParameters(OptimizationParameters):
    """Gradient descent."""


@dataclasses.dataclass(frozen=True)
class AdagradParameters(OptimizationParameters):
    """Adagrad.

    Attributes:
        initial_accumulator: Initial value of the accumulators, positive.
    """

    initial_accumulator: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.initial_accumulator > 0, self, "initial_accumulator", "greater than zero")


@dataclasses.dataclass(frozen=True)
class ProximalAdagradParameters(OptimizationParameters):
    """Adagrad with regularization by proximal steps.

    Attributes:
        initial_accumulator: Initial value of the accumulators, positive.
        l1_regularization_strength: At least 0.
        l2_regularization_strength: At least 0.
    """

    initial_accumulator: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.initial_accumulator > 0, self, "initial_accumulator", "greater than zero")
        _check_regularization(self)


@dataclasses.dataclass(frozen=True)
class AdamParameters(OptimizationParameters):
    """Adam.

    Attributes:
        beta1: Decay of the first moment, from 0, below 1.
        beta2: Decay of the second moment, from 0, below 1.
        epsilon: Positive.
        lazy_adam: Whether only the rows of a step's ids decay and move.
        sum_inside_sqrt: Whether the divisor is sqrt(v + epsilon^2), not sqrt(v) + epsilon.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            _check(0 <= getattr(self, name) < 1, self, name, "between 0. and 1")
        _check(self.epsilon > 0, self, "epsilon", "positive")
        if not self.use_gradient_accumulation and not self.lazy_adam:
            raise ValueError(
                "When disabling Lazy Adam, gradient accumulation must be used: set "
                "use_gradient_accumulation=True."
            )


@dataclasses.dataclass(frozen=True)
class FtrlParameters(OptimizationParameters):
    """FTRL.

    Attributes:
        learning_rate_power: At most 0.
        initial_accumulator_value: At least 0.
        l1_regularization_strength: At least 0.
        l2_regularization_strength: At least 0.
        multiply_linear_by_learning_rate: Whether the linear slot is multiplied by the learning
            rate where it is used.
        beta: At least 0.
        allow_zero_accumulator: A hint to TPU hardware; emulated cores always allow it.
    """

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    multiply_linear_by_learning_rate: bool = dataclasses.field(default=False, kw_only=True)
    beta: float = dataclasses.field(default=0.0, kw_only=True)
    allow_zero_accumulator: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(
            self.learning_rate_power <= 0, self, "learning_rate_power", "less than or equal to 0"
        )
        _check(
            self.initial_accumulator_value >= 0,
            self,
            "initial_accumulator_value",
            "greater than or equal to 0",
        )
        _check_regularization(self)


@dataclasses.dataclass(frozen=True)
class MomentumParameters(OptimizationParameters):
    """Gradient descent with momentum.

    Attributes:
        momentum: The share of the last step that the next one keeps.
        use_nesterov: Whether the momentum is Nesterov's.
    """

    momentum: float
    use_nesterov: bool = False


@dataclasses.dataclass(frozen=True)
class RMSPropParameters(OptimizationParameters):
    """RMSProp.

    Attributes:
        rho: Decay of the squared gradients.
        momentum: The share of the last step that the next one keeps.
        epsilon: Keeps the divisor from zero.
    """

    rho: float
    momentum: float
    epsilon: float


SUPPORTED_PARAMETERS = (
    ProximalAdagradParameters,
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    StochasticGradientDescentParameters,
    MomentumParameters,
    RMSPropParameters,
)


def _check(holds: bool, parameters: OptimizationParameters, name: str, condition: str) -> None:
    if not holds:
        raise ValueError(
            f"{type(parameters).__name__}: {name} must be {condition}, got: "
            f"{getattr(parameters, name)!r}."
        )


def _check_regularization(parameters: FtrlParameters | ProximalAdagradParameters) -> None:
    for name in ("l1_regularization_strength", "l2_regularization_strength"):
        _check(getattr(parameters, name) >= 0, parameters, name, "greater than or equal to 0")

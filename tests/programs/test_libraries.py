"""Libraries that a model_fn uses: each in a TPUEstimator, in all places."""

import pytest

PROBABILITY = ["tensorflow-probability==0.24.0", "dm-tree==0.1.10"]
PLACES = pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])


@pytest.mark.program(
    package="tensorflow-probability==0.24.0",
    program="distributions in a TPUEstimator",
    needs=["dm-tree==0.1.10"],
)
@PLACES
def test_probability(case):
    case.drive("drive_probability")


@pytest.mark.program(package="trfl==1.2.0", program="losses in a TPUEstimator", needs=PROBABILITY)
@PLACES
def test_trfl(case):
    case.drive("drive_trfl")


@pytest.mark.program(
    package="tensorflow-privacy==0.7.3", program="dp_optimizer in a TPUEstimator", needs=PROBABILITY
)
@PLACES
def test_privacy(case):
    case.drive("drive_privacy")


# It asks its optimizer for what a CrossShardOptimizer does not have: several cores can't train with it.
@pytest.mark.program(
    package="tensorflow-constrained-optimization==0.2",
    program="ProxyLagrangianOptimizerV1 in a TPUEstimator",
)
@pytest.mark.parametrize("place", ["host"])
def test_constrained_optimization(case):
    case.drive("drive_constrained")


@pytest.mark.program(package="kfac==0.2.4", program="K-FAC in a TPUEstimator", needs=PROBABILITY)
@pytest.mark.parametrize("place", ["host"])
def test_kfac(case):
    case.drive("drive_kfac")


@pytest.mark.program(
    package="dm-sonnet==1.36",
    program="LSTM, BatchNorm and MLP in a TPUEstimator",
    needs=["semantic-version==2.10.0", "contextlib2==21.6.0", *PROBABILITY],
    edit="--repair",
    repaired=["sonnet"],
)
@PLACES
def test_sonnet(case):
    case.drive("drive_sonnet")

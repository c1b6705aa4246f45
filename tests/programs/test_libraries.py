"""Libraries around an estimator, or in its model_fn: a driver of ours uses each in all the places that it can."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.programs.running import OLD_MESSAGES, HandEdit

HOST, TWO, ALL = ("host",), ("host", "2 cores"), ("host", "2 cores", "8 cores")
PROBABILITY = ["tensorflow-probability==0.24.0", "dm-tree==0.1.10"]

ADANET = {
    "package": "adanet==0.9.0",
    "differs": dict.fromkeys(("host", "cores"), "it imports a module that TensorFlow 2.15 lacks"),
}
# A TPUEstimator rejects tensors without a batch dimension in a host_call, and AdaNet's of TensorFlow 2 has none.
SCALARS = HandEdit(
    file="adanet/core/summary.py",
    search="""data=tensor, description=description, step=step)

    self._create_summary(_summary_fn, name,
                         tf.reshape(tf.convert_to_tensor(value=tensor), []))""",
    replace="""data=tf.reduce_mean(tensor), description=description, step=step)

    self._create_summary(_summary_fn, name,
                         tf.reshape(tf.convert_to_tensor(value=tensor), [1]))""",
)
# TensorFlow's private module of feature columns has Keras's layer no more.
DENSE_FEATURES = HandEdit(
    file="tensorflow_ranking/python/feature.py",
    search="feature_column_lib.DenseFeatures(",
    replace="tf.compat.v1.keras.layers.DenseFeatures(",
)
TRANSFORMER = [
    # Looked up even if a TPUEstimator's is used.
    HandEdit(
        file="tensor2tensor/utils/trainer_lib.py",
        search="run_config_cls = contrib.learn().RunConfig\n",
        replace="run_config_cls = tf.estimator.RunConfig\n",
    ),
    # Its data is read by slim's parallel_reader, which is in the package tf_slim only.
    HandEdit(
        file="tensor2tensor/utils/contrib.py",
        search="from tensorflow.contrib import slim as tf_slim",
        replace="import tf_slim",
    ),
]
GAN = {"package": "tensorflow-gan==2.1.0", "needs": PROBABILITY}
HUB = {"package": "tensorflow-hub==0.13.0"}
MESH = {
    "package": "mesh-tensorflow==0.1.21",
    "program": "a network over a mesh in an Estimator, with Adafactor",
    "needs": ["gin-config==0.5.0"],
}
NEURAL_STRUCTURED = {"package": "neural-structured-learning==1.4.0"}
SLIM = {"package": "tf-slim==1.1.0"}
MOMENTS = {"cores": "batch norm computes its moments over a core's rows"}

# The driver's arguments, the places, and the arguments of the mark `program`.
CASES: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("adanet Estimator", HOST, {**ADANET, "program": "adanet.Estimator"}),
    (
        "adanet AutoEnsembleEstimator",
        HOST,
        {
            **ADANET,
            "program": "adanet.AutoEnsembleEstimator of canned estimators",
            "differs": {
                "host": "it gives canned estimators optimizers that TensorFlow 2.15 refuses"
            },
        },
    ),
    ("adanet TPUEstimator", HOST, {**ADANET, "program": "adanet.TPUEstimator"}),
    (
        "adanet TPUEstimator",
        ALL[1:],
        {**ADANET, "program": "adanet.TPUEstimator", "edit": "by hand", "edits": [SCALARS]},
    ),
    (
        "structured adversarial",
        HOST,
        {
            **NEURAL_STRUCTURED,
            "program": "estimator.add_adversarial_regularization",
            "differs": {
                "host": "the library calls the model_fn of a DNNClassifier twice in one graph under AUTO_REUSE: "
                "the original makes a second network, `dnn_1`; here both calls share one"
            },
        },
    ),
    (
        "structured graph",
        HOST,
        {**NEURAL_STRUCTURED, "program": "estimator.add_graph_regularization"},
    ),
    (
        "ranking",
        HOST,
        {
            "package": "tensorflow-ranking==0.2.3",
            "program": "model.make_groupwise_ranking_fn with a head",
            "edit": "by hand",
            "edits": [DENSE_FEATURES],
        },
    ),
    ("hub module", ALL, {**HUB, "program": "hub.Module in a TPUEstimator"}),
    ("hub column", HOST, {**HUB, "program": "text_embedding_column in a DNNClassifier"}),
    ("mesh", HOST, {**MESH, "edit": "--repair", "repaired": ["mesh_tensorflow"]}),
    (
        "mesh",
        HOST,
        {
            **MESH,
            "edit": "--fix",
            "fix": ["mesh_tensorflow/ops.py", "mesh_tensorflow/tpu_variables.py"],
        },
    ),
    (
        "t2t",
        TWO,
        {
            "package": "tensor2tensor==1.15.7",
            "program": "Transformer by its trainer_lib, in a TPUEstimator",
            "needs": [
                "tf-slim==1.1.0",
                "mesh-tensorflow==0.1.21",
                "tensorflow-gan==2.1.0",
                "tensorflow-datasets==1.3.2",
                *PROBABILITY,
                "gin-config==0.5.0",
                "gym==0.17.3",
                "promise==2.3",
            ],
            "edit": "by hand",
            "repaired": ["mesh_tensorflow"],
            "edits": TRANSFORMER,
            "differs": dict.fromkeys(("host", "cores"), "it imports tensorflow.contrib"),
        },
    ),
    ("tf_gan GANEstimator", HOST, {**GAN, "program": "tfgan.estimator.GANEstimator"}),
    # The generator and the discriminator take turns.
    (
        "tf_gan TPUGANEstimator",
        ALL,
        {
            **GAN,
            "program": "tfgan.estimator.TPUGANEstimator",
            "differs": {
                "cores": "each core splits its own rows between generator and discriminator"
            },
        },
    ),
    (
        "tf_slim convolutions",
        ALL,
        {**SLIM, "program": "layers under an arg_scope, in a TPUEstimator", "differs": MOMENTS},
    ),
    (
        "tf_slim resnet",
        ALL,
        {**SLIM, "program": "nets.resnet_v2 in a TPUEstimator", "differs": MOMENTS},
    ),
    (
        "model_fns probability",
        ALL,
        {
            "package": "tensorflow-probability==0.24.0",
            "program": "distributions in a TPUEstimator",
            "needs": ["dm-tree==0.1.10"],
            "differs": {"cores": "each core draws its own sample"},
        },
    ),
    (
        "model_fns trfl",
        ALL,
        {"package": "trfl==1.2.0", "program": "losses in a TPUEstimator", "needs": PROBABILITY},
    ),
    (
        "model_fns privacy",
        ALL,
        {
            "package": "tensorflow-privacy==0.7.3",
            "program": "dp_optimizer in a TPUEstimator",
            "differs": {"cores": "each core draws its own noise"},
            "needs": PROBABILITY,
        },
    ),
    # It reads attributes of its optimizer that a CrossShardOptimizer does not have, so several cores can't train with
    # it.
    (
        "model_fns constrained",
        HOST,
        {
            "package": "tensorflow-constrained-optimization==0.2",
            "program": "ProxyLagrangianOptimizerV1 in a TPUEstimator",
        },
    ),
    (
        "model_fns kfac",
        HOST,
        {"package": "kfac==0.2.4", "program": "K-FAC in a TPUEstimator", "needs": PROBABILITY},
    ),
    (
        "model_fns sonnet",
        ALL,
        {
            "package": "dm-sonnet==1.36",
            "program": "LSTM, BatchNorm and MLP in a TPUEstimator",
            "needs": ["semantic-version==2.10.0", "contextlib2==21.6.0", *PROBABILITY],
            "edit": "--repair",
            "repaired": ["sonnet"],
            "environment": OLD_MESSAGES,
            "differs": MOMENTS,
        },
    ),
]


def _each() -> Iterator[Any]:
    for words, places, case in CASES:
        for place in places:
            name = f"{case['package']}-{words.partition(' ')[2]}-{place}-{case.get('edit', 'none')}"
            yield pytest.param(words, place, marks=pytest.mark.program(**case), id=name)


@pytest.mark.parametrize(("words", "place"), _each())
def test_a_driver_of_the_library_runs(case, words):
    driver, *rest = words.split()
    case.drive(f"drive_{driver}", *rest)

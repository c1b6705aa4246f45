"""The public packages whose programs run here, and how their files come to this machine: by hash, once."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
# Kept between runs; `make clean` removes it.
CACHE = REPOSITORY / ".make" / "programs"
DOWNLOAD_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Package:
    """A package of the list.

    Attributes:
        name: As in the package index.
        version: The version that runs.
        sha256: The file's digest.
        licence: According to the wheel's metadata.
        why: Its parts that run here, or the package that needs it.
        is_source: Whether the index has only its source, which is built here.
    """

    name: str
    version: str
    sha256: str
    licence: str
    why: str
    is_source: bool = False

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


_APACHE = "Apache-2.0"
_LIST = [
    Package(
        "adanet",
        "0.9.0",
        "75decb63b3b6fd1feb5dc73c42aaafa7b6195e9092ffb0fc6540bdf1d5490bd1",
        _APACHE,
        "ensembles that grow: Estimator and TPUEstimator subclasses, one graph an iteration",
    ),
    Package(
        "albert-tensorflow",
        "1.1",
        "36ba735b95112597484c082bfa019bbf5b2e513a63627dce4949fdc43a67ba22",
        _APACHE,
        "its classifier: a TPUEstimator of tf.contrib, with tf.contrib's layer_norm",
    ),
    Package(
        "bert-tensorflow",
        "1.0.4",
        "f880680a03fbf637c217443b7d3d8969d0b3aef4822b4ea13c2a124498dd21a0",
        _APACHE,
        "its classifier, called from the command line",
    ),
    Package(
        "contextlib2",
        "21.6.0",
        "3fbdb64466afd23abaf6c977627b75b6139a5a3e8ce38405c5b413aed7a0471f",
        "PSF-2.0",
        "dm-sonnet imports it",
    ),
    Package(
        "dm-sonnet",
        "1.36",
        "afe292a5f2eaed5c3e2be4b30f2a14b67425422457b9a51579d616af6f075dac",
        _APACHE,
        "modules of TensorFlow 1 in a model_fn",
    ),
    Package(
        "dm-tree",
        "0.1.10",
        "7644b24bb5c7810b601f4b28cf6e4b516da96713ebfd9e45585240318c6b9384",
        _APACHE,
        "tensorflow-probability imports it",
    ),
    Package(
        "gin-config",
        "0.5.0",
        "bddb7ca221ea2b46cdb59321e79fecf02d6e3b728906047fcd4076c297609fd6",
        _APACHE,
        "mesh-tensorflow and tensor2tensor import it",
    ),
    Package(
        "gym",
        "0.17.3",
        "96a7dd4e9cdb39e30c7a79e5773570fd9408f7fdb58c714c293cfbb314818eb6",
        "MIT",
        "tensor2tensor imports it",
        is_source=True,
    ),
    Package(
        "kfac",
        "0.2.4",
        "10e1eccde4708c3ee20c8818d2245292502d84e0934232ee98eda2baf1335228",
        _APACHE,
        "an optimizer that sums over cores by itself",
    ),
    Package(
        "mesh-tensorflow",
        "0.1.21",
        "747d46696ad260ae59a566fc1726749b99080973b07aae098be5714931a3ad80",
        _APACHE,
        "models whose dimensions are split over a mesh; hooks and savers of their own",
    ),
    Package(
        "neural-structured-learning",
        "1.4.0",
        "bdf98943f09a3e1aaad8f321d668fddb52663f2ca950046ca964a524d9464e2a",
        _APACHE,
        "wraps the model_fn of canned estimators",
    ),
    Package(
        "promise",
        "2.3",
        "dfd18337c523ba4b6a58801c164c1904a9d4d1b1747c7d5dbf45b693a49d93d0",
        "MIT",
        "tensorflow-datasets imports it",
        is_source=True,
    ),
    Package(
        "semantic-version",
        "2.10.0",
        "de78a3b8e0feda74cabc54aab2da702113e33ac9d9eb9d2389bcf1f58b7d9177",
        "BSD",
        "dm-sonnet imports it",
    ),
    Package(
        "sentencepiece",
        "0.2.0",
        "1380ce6540a368de2ef6d7e6ba14ba8f3258df650d39ba7d833b79ee68a52040",
        _APACHE,
        "albert-tensorflow and xlnet-tensorflow import it",
    ),
    Package(
        "tapas-table-parsing",
        "0.0.1.dev0",
        "e4edfdbb4b61b0196ff559854e35799841c770afd505dd4702f8af974db6ebc9",
        _APACHE,
        "a BERT for tables, trained by a TPUEstimator on a TPU that it names",
    ),
    Package(
        "tensor2tensor",
        "1.15.7",
        "26ef986c2b9f45bdefa4218229f33f2992e4d9df84f8939d41481cdaa8444392",
        _APACHE,
        "the Transformer, by its own trainer_lib, HParams and problems",
    ),
    Package(
        "tensorflow-constrained-optimization",
        "0.2",
        "1c9429e40ac6c6104bc0ae1478fc576423294cdd6bdd735065248c7e4e6fc522",
        _APACHE,
        "an optimizer with constraints, which has its own variables and steps",
    ),
    Package(
        "tensorflow-datasets",
        "1.3.2",
        "f85c6db419a2f6019086c38e4cd90557f47b0b5639244cb9b56c2f5c83a50428",
        _APACHE,
        "tensor2tensor and mesh-tensorflow import it",
    ),
    Package(
        "tensorflow-gan",
        "2.1.0",
        "a6869fc145c9df55bc337f255d7d27c2a36f5bed58507dde7bd9de5cfc2a9421",
        _APACHE,
        "GANEstimator and TPUGANEstimator, whose optimizers take turns",
    ),
    Package(
        "tensorflow-hub",
        "0.13.0",
        "3544f4fd9fd99e4eeb6da1b5b5320e4a2dbdef7f9bb778f66f76d6790f32dd65",
        _APACHE,
        "modules and columns of them, in canned estimators and a model_fn; exporters",
    ),
    Package(
        "tensorflow-privacy",
        "0.7.3",
        "8beb1161ec9bc9635c3c9b6cc48311f224c83f926e239307fe00050cb6192048",
        _APACHE,
        "an optimizer that clips the gradient of each row",
    ),
    Package(
        "tensorflow-probability",
        "0.23.0",
        "dda5cacfe50cb19ecd96f3ce81e6ff8680d84213bcfe94ca0aaf6e5f51c88061",
        _APACHE,
        "the last version for TensorFlow 2.15, for proofs",
    ),
    Package(
        "tensorflow-probability",
        "0.24.0",
        "8c1774683e38359dbcaf3697e79b7e6a4e69b9c7b3679e78ee18f43e59e5759b",
        _APACHE,
        "tensorflow-gan and others import it",
    ),
    Package(
        "tensorflow-ranking",
        "0.2.3",
        "bc551b6f437833be47835deaa9a56193523e6fd4561a003cafbe750548a6bfaf",
        _APACHE,
        "groupwise models, heads and an estimator builder",
    ),
    Package(
        "tf-models-official",
        "2.1.0.dev2",
        "4ca7d641eb59479da538bddf96481dafbcfef6155f5d7b2325719960f646fde9",
        _APACHE,
        "the ResNets of tf.estimator, by themselves and under a MirroredStrategy",
    ),
    Package(
        "tf-models-official",
        "2.2.0",
        "f8b5c979c91ecdbf7cc5ba405b6e7f4d840d6e0ce3d2d059e238d0ff19d2a20a",
        _APACHE,
        "neural collaborative filtering under a MirroredStrategy",
    ),
    Package(
        "tf-slim",
        "1.1.0",
        "fa2bab63b3925bd42601102e7f178dce997f525742596bf404fa8a6918e146ff",
        _APACHE,
        "its networks in a model_fn; tapas-table-parsing imports it",
    ),
    Package(
        "tfx",
        "1.15.1",
        "fcdece79fac645be5aa9bdc76d29111990ff7d473d306661c71d1e70f861ed22",
        _APACHE,
        "modules with a trainer_fn",
    ),
    Package(
        "trfl",
        "1.2.0",
        "19da329c33b7f454bf87060c9c1726dfc9ae55b8e080e7d65eb8a8d41f2bbf21",
        _APACHE,
        "losses of reinforcement learning in a model_fn",
    ),
    Package(
        "xlnet-tensorflow",
        "1.1.2",
        "7c6a19ea95dcaf376f9e22f8157affee6be259fd3656e1d0cd2feb4aea964138",
        _APACHE,
        "its classifier: an Estimator on the host, a TPUEstimator on cores",
    ),
]
PACKAGES = {package.requirement: package for package in _LIST}
"""By `name==version`."""
IN_PROOFS = {"tensorflow-probability==0.24.0": "tensorflow-probability==0.23.0"}
"""Packages that TensorFlow 2.15 can't import, and the versions that both sides of a proof can."""


class PackageError(Exception):
    """A package differs from the list: its hash is another, or it can't be installed."""


class UnreachableError(PackageError):
    """No package index answers."""


def package_folder(requirement: str) -> pathlib.Path:
    """Returns the folder with a package's files, fetched by hash; its dependencies are not there.

    Args:
        requirement: Name and version, as the list has them: `"tf-slim==1.1.0"`.

    Raises:
        PackageError: If the package can't be had, or has another hash.
    """
    package = PACKAGES[requirement]
    folder = CACHE / f"{package.name}-{package.version}-{package.sha256[:12]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as partial:
            site = pathlib.Path(partial) / "site"
            install(package, site)
            # Where another process was quicker, its files are the same.
            if not folder.exists():
                site.rename(folder)
    return folder


def package_folder_or_skip(requirement: str) -> pathlib.Path:
    """Returns the folder of a package; skips the test if no package index answers."""
    try:
        return package_folder(requirement)
    except UnreachableError as error:
        pytest.skip(str(error))


def install(package: Package, folder: pathlib.Path, *, options: tuple[str, ...] = ()) -> None:
    """Installs one package into a folder, if the index's file is the one in the list.

    Args:
        package: The package.
        folder: The folder for its files; it must not exist.
        options: More options of pip.

    Raises:
        PackageError: If the package can't be had, or has another hash.
    """
    listed = folder.with_suffix(".txt")
    listed.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--no-compile"]
    command += ["--no-build-isolation"] if package.is_source else ["--only-binary=:all:"]
    # They were for older Pythons; whether they run on this one is the question.
    command += ["--ignore-requires-python"]
    # Where nothing answers, nothing waits.
    command += ["--retries", "1", "--timeout", "20", "--target", str(folder), "-r", str(listed)]
    ended = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_SECONDS,
        check=False,
        env={**os.environ, "PIP_USER": "0"},
    )
    if ended.returncode == 0:
        return
    said = ended.stderr.strip()[-600:]
    if "DO NOT MATCH THE HASHES" in ended.stderr:
        raise PackageError(
            f"{package.requirement} is not the file that the list names "
            f"(sha256 {package.sha256}); nothing of it was installed. pip: {said}"
        )
    raise UnreachableError(
        f"pip could not get {package.requirement}: a package index is needed the first time. "
        f"pip: {said}"
    )

"""Packages the pipelines' code for Beam workers that do not run the pipeline's image.

The images have this file as `/app/setup.py`, next to `pipelines/`, for `--setup_file=/app/setup.py`. The workers
install it, with TFX from the package index, before their first bundle; see docs/beam.md.
"""

import setuptools

setuptools.setup(
    name="pipelines-of-tfx-tpu-trainer",
    version="1",
    packages=setuptools.find_packages(include=["pipelines", "pipelines.*"]),
    package_data={"pipelines": ["*/*.yaml"]},
    # The images' versions: both sides must be able to unpickle each other's objects. Workers have the image's Python,
    # which differs between TFX's lines.
    install_requires=[
        "tfx==1.16.0; python_version < '3.11'",
        "apache-beam==2.59.0; python_version < '3.11'",
        "tensorflow==2.16.2; python_version < '3.11'",
        "tfx==1.21.0; python_version >= '3.11'",
        "apache-beam==2.73.0; python_version >= '3.11'",
        "tensorflow==2.21.0; python_version >= '3.11'",
    ],
)

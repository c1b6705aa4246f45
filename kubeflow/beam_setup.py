"""The pipelines' code as a package, for Beam workers that are not made from the pipeline's image.

The images have this file as `/app/setup.py`, beside `pipelines/`: it is what `--setup_file=/app/setup.py` names. The
workers install it, with TFX from the package index, before their first bundle; docs/beam.md.
"""

import setuptools

setuptools.setup(
    name="pipelines-of-tfx-tpu-trainer",
    version="1",
    packages=setuptools.find_packages(include=["pipelines", "pipelines.*"]),
    package_data={"pipelines": ["*/*.yaml"]},
    # The images' versions: what one side pickles the other must be able to read. Workers have the Python of the image,
    # and each line of TFX has Pythons of its own.
    install_requires=[
        "tfx==1.16.0; python_version < '3.11'",
        "apache-beam==2.59.0; python_version < '3.11'",
        "tensorflow==2.16.2; python_version < '3.11'",
        "tfx==1.21.0; python_version >= '3.11'",
        "apache-beam==2.73.0; python_version >= '3.11'",
        "tensorflow==2.21.0; python_version >= '3.11'",
    ],
)

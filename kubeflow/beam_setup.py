"""The pipelines' code as a package, for Beam workers that are not made from the pipeline's image.

The image has this file as `/app/setup.py`, beside `pipelines/`: it is what `--setup_file=/app/setup.py` names. Workers
install it, with TFX from the package index, before their first bundle; docs/beam.md.
"""

import setuptools

setuptools.setup(
    name="pipelines-of-tfx-tpu-trainer",
    version="1",
    packages=setuptools.find_packages(include=["pipelines", "pipelines.*"]),
    package_data={"pipelines": ["*/*.yaml"]},
    # The image's versions: what one side pickles the other must be able to read.
    install_requires=["tfx==1.16.0", "apache-beam==2.59.0", "tensorflow==2.16.2"],
)

# SPDX-License-Identifier: Apache-2.0
"""Which folders become packages. Everything else about the distribution is in pyproject.toml.

The kernel sources lie at the top of the repository, where they are easy to find and to compile by themselves, and are
installed as `tensorbackend/kernels`, beside the code that reads them (`tensorbackend/kernel_files.py`).
"""

from setuptools import find_packages, setup

KERNEL_SOURCES = ["*.md", "**/*.c", "**/*.h", "**/*.cpp", "**/*.S", "**/*.cu", "**/*.cuh"]

setup(
    packages=[*find_packages(include=["tensorbackend", "tensorbackend.*"]), "tensorbackend.kernels"],
    package_dir={"tensorbackend.kernels": "kernels"},
    package_data={"tensorbackend": ["py.typed"], "tensorbackend.kernels": KERNEL_SOURCES},
    include_package_data=False,
)

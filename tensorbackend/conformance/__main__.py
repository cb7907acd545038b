# SPDX-License-Identifier: Apache-2.0
"""`python -m tensorbackend.conformance --backend NAME`: the suite on a registered backend. The rest is pytest's.

A backend that no installed package registers is imported first: `-p its.module`.
"""

import sys

try:
    import hypothesis  # noqa: F401  the suite needs it
    import pytest
except ModuleNotFoundError as error:
    sys.exit(f"the conformance suite needs pytest and hypothesis ({error}): pip install pytest hypothesis")

PLUGIN = "tensorbackend.conformance.plugin"
QUIET = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"  # hypothesis, which the plugin imports

options = ["-p", PLUGIN, "-W", QUIET, "--import-mode=importlib", "--pyargs", "tensorbackend.conformance"]
sys.exit(pytest.main([*options, *sys.argv[1:]]))

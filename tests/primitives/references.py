# SPDX-License-Identifier: Apache-2.0
"""The definitions of the conformance suite, under the name that they had."""

from tensorbackend.conformance.references import *  # noqa: F403

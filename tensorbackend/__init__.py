# SPDX-License-Identifier: Apache-2.0
"""tensorbackend: layers written once against `be`, run on any backend."""

__version__ = "0.1.0"

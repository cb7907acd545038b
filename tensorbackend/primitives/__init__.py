# SPDX-License-Identifier: Apache-2.0
"""Primitives: geometry, validation and meaning, shared by all backends."""

# SPDX-License-Identifier: Apache-2.0
"""The contract as a test suite, which any backend can run against itself: docs/write-a-backend.md.

`python -m tensorbackend.conformance --backend NAME` runs it, a file a family. It needs pytest and hypothesis, which
nothing outside this package does.
"""

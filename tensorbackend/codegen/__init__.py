# SPDX-License-Identifier: Apache-2.0
"""How kernels are written: loop nests, and the dialects that print them."""

# SPDX-License-Identifier: Apache-2.0
"""What to compute: structures, op-trees, tensors, derivatives, and the schedule that cuts trees into kernels."""

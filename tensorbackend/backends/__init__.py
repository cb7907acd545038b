# SPDX-License-Identifier: Apache-2.0
"""Where it runs: the contract, the backends, and the registry that finds them."""

# SPDX-License-Identifier: Apache-2.0
"""The function layer: variables, function nodes, and the graph that gradients run through.

`variable.py` holds arrays with gradients, `node.py` and `old_style.py` what users derive functions from, `backprop.py`
the way back, `trees.py` functions that are written as op-trees and get their gradients from the op table, `config.py`
what a thread has switched on. `tensorbackend.functions` is the library written on top.
"""

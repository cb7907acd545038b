# SPDX-License-Identifier: Apache-2.0
"""Differentiable functions: `import tensorbackend.functions as F`.

All take NumPy arrays, tensors and variables (of one kind in a call; Python numbers mix freely), and give a variable, or
a tuple of them. Layout is batch first. An axis that is not there raises `ShapeError`; types, ranks and lengths that a
function does not take raise `type_check.InvalidType`, a `TypeError`.

How to write one
----------------
*As a tree.* Nearly every function is a `Rule` (`tensorbackend/function/trees.py`): a function of op-trees, made of
`graph/composite.py` (`o`), which has all ops of the table. Its gradient follows, to any order, and forward and backward
are fused kernels:

    _SOFTSIGN = Rule("softsign", lambda x: x / (1 + abs(x)), check=_check, names=("x",))

    def softsign(x: Any) -> Variable:
        '''x / (1 + |x|).'''
        return _SOFTSIGN(x)

- Operands come positionally: arrays, and numbers that change. Parameters come by keyword and are hashable: the rule
  runs once for each set of them and of the operands' layouts. Axes are a tuple or an int, never a list.
- `compute` sees nodes: they have `shape` and `dtype` and no numbers. It may give a tuple: several outputs, which run
  as one group.
- `gradient(g, y, *operands, **params)` replaces the derivatives of the op table: where the contract says so of ties,
  or where a formula in the output `y` is shorter. It gives a tree or None for each operand, and is differentiated again
  itself; a gradient that is wider than its operand is summed over the broadcast axes.
- What backward keeps is what the gradient's trees read; nothing need be said.
- Random numbers are `uniform(x)` and `normal(x)` of `trees.py`: one draw a call, seen by both ways.
- `check(in_types, **params)` uses `type_check`, and runs once for each layout.

*As a node.* What is no tree (several results of a primitive, copies between backends) is a
`FunctionNode` with `_run_forward(self, data)` on plain arrays (`function/arrays.py`), as `concat` in `shapes.py`;
`backward` is written with functions of this package. `arrays.tensor_of` lets the engine see a NumPy array,
and `arrays.fresh` allocates.

A public function is a plain function with a docstring that builds the node, applies it and unpacks.
"""

from types import ModuleType as _ModuleType

from tensorbackend.functions import operators  # noqa: F401  gives variables their operators
from tensorbackend.functions.activations import *  # noqa: F403
from tensorbackend.functions.arguments import explained as _explained
from tensorbackend.functions.arranging import *  # noqa: F403
from tensorbackend.functions.convolution import *  # noqa: F403
from tensorbackend.functions.elementwise import *  # noqa: F403
from tensorbackend.functions.evaluation import *  # noqa: F403
from tensorbackend.functions.images import *  # noqa: F403
from tensorbackend.functions.linalg import *  # noqa: F403
from tensorbackend.functions.losses import *  # noqa: F403
from tensorbackend.functions.mixtures import *  # noqa: F403
from tensorbackend.functions.noise import *  # noqa: F403
from tensorbackend.functions.normalization import *  # noqa: F403
from tensorbackend.functions.picking import *  # noqa: F403
from tensorbackend.functions.pooling import *  # noqa: F403
from tensorbackend.functions.products import *  # noqa: F403
from tensorbackend.functions.recurrent import *  # noqa: F403
from tensorbackend.functions.reductions import *  # noqa: F403
from tensorbackend.functions.regions import *  # noqa: F403
from tensorbackend.functions.sequences import *  # noqa: F403
from tensorbackend.functions.shapes import *  # noqa: F403

__all__ = [name for name in dir() if not (name.startswith("_") or isinstance(globals()[name], _ModuleType))]
globals().update({_name: _explained(globals()[_name], __name__) for _name in __all__})

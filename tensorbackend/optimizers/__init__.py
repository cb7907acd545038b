# SPDX-License-Identifier: Apache-2.0
"""Optimizers and their hooks.

`optimizer.py` has what all share, `methods.py` the methods, `hooks.py` what changes gradients before a step. A step of
a method is one kernel a parameter: its state and the parameter are written together.
"""

from tensorbackend.optimizers.hooks import (
    GradientClipping,
    GradientHardClipping,
    GradientLARS,
    GradientNoise,
    Lasso,
    WeightDecay,
)
from tensorbackend.optimizers.methods import (
    SGD,
    AdaDelta,
    AdaGrad,
    Adam,
    AdamW,
    MomentumSGD,
    NesterovAG,
    RMSprop,
)
from tensorbackend.optimizers.optimizer import GradientMethod, Hyperparameter, Optimizer, UpdateRule

__all__ = [
    "SGD", "AdaDelta", "AdaGrad", "Adam", "AdamW", "GradientClipping", "GradientHardClipping", "GradientLARS",
    "GradientMethod", "GradientNoise", "Hyperparameter", "Lasso", "MomentumSGD", "NesterovAG", "Optimizer", "RMSprop",
    "UpdateRule", "WeightDecay",
]  # fmt: skip

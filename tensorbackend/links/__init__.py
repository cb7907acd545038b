# SPDX-License-Identifier: Apache-2.0
"""Links: functions with parameters. `import tensorbackend.links as L`.

`link.py` has what links are made of, `parameter.py` parameters, the other modules the links for the functions of
`tensorbackend.functions`.
"""

from tensorbackend.links.basic import Bias, Classifier, EmbedID, Linear, Maxout, Parameter, PReLU, Scale
from tensorbackend.links.images import Convolution2D, Deconvolution2D
from tensorbackend.links.link import Chain, ChainList, Link, Sequential
from tensorbackend.links.normalization import BatchNormalization, LayerNormalization
from tensorbackend.links.pairs import Bilinear, GaussianMixture2D, NegativeSampling
from tensorbackend.links.recurrent import (
    GRU,
    LSTM,
    NStepBiGRU,
    NStepBiLSTM,
    NStepBiRNNReLU,
    NStepBiRNNTanh,
    NStepGRU,
    NStepLSTM,
    NStepRNNReLU,
    NStepRNNTanh,
    StatelessLSTM,
)

__all__ = [
    "GRU", "LSTM", "BatchNormalization", "Bias", "Bilinear", "Chain", "ChainList", "Classifier", "Convolution2D",
    "Deconvolution2D", "EmbedID", "GaussianMixture2D", "LayerNormalization", "Linear", "Link", "Maxout",
    "NStepBiGRU", "NStepBiLSTM", "NStepBiRNNReLU", "NStepBiRNNTanh", "NStepGRU", "NStepLSTM", "NStepRNNReLU",
    "NStepRNNTanh", "NegativeSampling", "PReLU", "Parameter", "Scale", "Sequential", "StatelessLSTM",
]  # fmt: skip

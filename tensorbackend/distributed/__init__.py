# SPDX-License-Identifier: Apache-2.0
"""Training over processes: each runs the same script on its share of the data, and they exchange tensors.

    comm = distributed.init("cpu")            # once in every process
    be = comm.backend
    ...
    comm.allreduce(gradient, op="mean")       # in place, in every process

`python -m tensorbackend launch -n 4 train.py` starts four processes. Without a launch there is one process, to which
every exchange is trivial: the same script runs both ways. On CPUs the processes talk over MPI (mpi4py), on GPUs over
NCCL (through CuPy) with MPI as the way to find each other; neither is imported before it is needed.
"""

from tensorbackend.distributed.buckets import GradientBuckets
from tensorbackend.distributed.checkpoint import load_checkpoint, save_checkpoint
from tensorbackend.distributed.communicator import Alone, Communicator
from tensorbackend.distributed.optimizer import AverageGradients, distributed_optimizer
from tensorbackend.distributed.runner import processes
from tensorbackend.distributed.sampler import ShardedBatches
from tensorbackend.distributed.start import init

__all__ = [
    "Alone", "AverageGradients", "Communicator", "GradientBuckets", "ShardedBatches", "distributed_optimizer", "init",
    "load_checkpoint", "processes", "save_checkpoint",
]  # fmt: skip

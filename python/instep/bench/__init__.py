"""`instep bench collectives`: how fast backends move tensors between ranks, side by side.

`__main__` starts the ranks (with `instep run`, or `mpirun` where MPI takes part) and shows what they report; `rank` is
what they run; `contender` and `mpi` make one call of a backend; `case` holds what is computed and not measured: buffer
sizes, expected results, bandwidth factors; `table` is the result on paper; `hosts` makes several hosts out of this
machine, with `relay` for the delay between them. Only the ranks import torch.
"""

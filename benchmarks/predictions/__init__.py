"""What kernels and training steps cost on a GPU, counted and predicted without one.

devices     constants of the GPUs, with their sources
graphs      two real structures with their edges
launches    the kernels that a computation launches, with the index arrays that they read
sass        machine code of ptxas: instructions by pipe, loops, the time of a warp
traffic     wavefronts, sectors, and rows that miss an LRU
counts      all that is counted of a launch
model       from counts to a time, and what bounds it
steps       whole training steps, from XLA's schedule
"""

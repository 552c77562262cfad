"""Count what kernels and training steps do on a GPU, and predict their times, without one.

devices     constants of the GPUs, with their sources
graphs      two structures with their edges: five frames of 3BPA, and silicon
launches    the kernels that a computation launches, with the index arrays that they read
sass        machine code of ptxas: instructions by pipe, loops, the time of a warp
traffic     wavefronts, sectors, and rows that miss an LRU
reuse       which bytes miss level 2
counts      everything that is counted of a launch
model       from counts to a time, and what bounds it
steps       whole training steps, from XLA's schedule
page        the tables of `results/predictions.md`

The emulator runs the PTX that ships on a sample of 6 to 16 blocks of the real grid, spread evenly,
with the real index arrays; it follows addresses and branches, not values. Counts are scaled by
edges, or by blocks where a kernel walks no edges. Four blocks of each job of a Linear's kernel run.
Instructions are those of the machine code. Its loops are matched with those of the PTX in order
where both nest alike, and each runs as often as the emulator saw. Elsewhere all loops turn equally
often, such that there are as many accesses of global memory as in PTX; the tables mark these
kernels with a star. Branches within a loop count as taken.

The model leaves out that level 1 keeps data from one walk of edges to the next, that a kernel finds
its input in level 2, that loads of a warp queue, and clocks that fall under load. It is least
certain for kernels that are bound by latency.
"""

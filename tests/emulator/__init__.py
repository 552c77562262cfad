"""An emulator of the PTX that ships: all threads of some blocks in lockstep, on NumPy lanes.

It runs a kernel as the GPU's driver is given it, without a GPU, and checks what Triton's
interpreter cannot: bounds and alignment of every access, reads of what was never written, branches
that threads of a block take differently, and races between two barriers.

    ptx         the text as instructions, and which of them decide addresses and branches
    group       the state of blocks that run together
    operands    readers of registers, constants and addresses
    arithmetic  what an instruction computes from its operands, by opcode
    moves       mov, setp, cvt and their like
    flow        branches and barriers
    warps       what the threads of a warp exchange: shuffles and products of matrices
    accesses    loads and stores, also of matrices
    arrays      the arrays of a launch: what has no value yet, and who wrote and read what
    memory      global and shared memory, with the checks
    machine     runs a kernel over a grid
    cases       runs the cases of the benchmarks and compares them with e3nn-jax
    functions   runs a JAX function whose kernels are emulated
"""

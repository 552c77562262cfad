"""The mutants: mistakes that are easily made, in every part of the package.

A mutant replaces a text that occurs once in its file. `test_mutation.py` checks that all of them
still apply; where a line has changed, change its mutant too.
"""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A replacement of a text by another, and the tests that should fail for it.

    Attributes:
      name: what is wrong.
      path: the file, from the root of the repository.
      old, new: the texts.
      tests: files, or functions in them; those first that find it soonest.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Write the mutant into a copy of the repository.

        Raises:
          ValueError: the old text does not occur exactly once in the file.
        """
        file = root / self.path
        text = file.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text occurs {count} times in {self.path}")
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")


OPS, DATA = "eqfuse/ops", "eqfuse/data"
MODELS, TRAINING = "eqfuse/models", "eqfuse/train"

MUTANTS = (
    # the algebra
    Mutant(
        "'norm' of Clebsch-Gordan coefficients",
        f"{OPS}/ir/product_parts.py",
        '"norm": math.sqrt(ir1.dim * ir2.dim),',
        '"norm": math.sqrt(ir1.dim + ir2.dim),',
        (
            "tests/ops/test_tensor_square.py::test_values_irreps_and_zero_flags",
            "tests/ops/test_tensor_product.py::test_value_and_derivatives",
        ),
    ),
    Mutant(
        "no path weight in Linear",
        f"{OPS}/ir/linears.py",
        "scale, std = float(i.path_weight), float(i.weight_std)",
        "scale, std = 1.0, float(i.weight_std)",
        ("tests/ops/test_linear_modules.py::test_linear_is_e3nns",),
    ),
    Mutant(
        "a tangent of a form is dropped",
        f"{OPS}/ir/form.py",
        "return Form(self.inputs + tuple(tangents), self.outputs, tuple(paths)).merged()",
        "return Form(self.inputs + tuple(tangents), self.outputs, tuple(paths[:-1])).merged()",
        ("tests/ops/ir/test_form.py",),
    ),
    Mutant(
        "order of components in a transpose",
        f"{OPS}/ir/form.py",
        "((*c[:out], *c[out + 1 :], c[out]), value)",
        "((*c[out + 1 :], *c[:out], c[out]), value)",
        ("tests/ops/ir/test_form.py",),
    ),
    Mutant(
        "gates activated as scalars are",
        f"{OPS}/ir/gates.py",
        'act = activations("gate_act", ir_gate.p)',
        'act = activations("act", ir_gate.p)',
        ("tests/ops/test_e3nn_names.py::test_gate_and_scalar_first",),
    ),
    Mutant(
        "equal monomials of the contraction are not added",
        f"{OPS}/ir/contraction.py",
        "[key] += float(coefficients[*places, component])",
        "[key] = float(coefficients[*places, component])",
        ("tests/ops/test_symmetric_contraction.py::test_value_and_derivatives",),
    ),
    # the backends
    Mutant(
        "sums in the dtype of the operands",
        f"{OPS}/backends/xla/forms.py",
        "wide = jnp.promote_types(dtype, jnp.float32)",
        "wide = jnp.dtype(dtype)",
        ("tests/ops/test_graph_tensor_product.py::test_half_precision_is_rounded_once",),
    ),
    Mutant(
        "mask of channels off by one in a Triton kernel",
        f"{OPS}/backends/triton/emit/form_operands.py",
        "{present}(lane < {mul})",
        "{present}(lane < {mul - 1})",
        ("tests/ops/backends/triton/test_interpreted_kernels.py",),
    ),
    Mutant(
        "last edge of a node lost in a Triton kernel",
        f"{OPS}/backends/triton/emit/form_kernel.py",
        "while position < stop:",
        "while position + 1 < stop:",
        ("tests/ops/test_tensor_product_linear.py::test_all_orders_equal_e3nn",),
    ),
    Mutant(
        "senders and receivers exchanged in native rows",
        f"{OPS}/backends/llvm/emit/plan.py",
        '{Index.SENDER: "senders", Index.RECEIVER: "receivers"}',
        '{Index.SENDER: "receivers", Index.RECEIVER: "senders"}',
        ("tests/ops/backends/llvm/test_llvm.py::test_random_forms_and_their_gradients",),
    ),
    Mutant(
        "rows left over by a native Linear",
        f"{OPS}/backends/llvm/emit/linear_rows.py",
        "with f.loop(stop, start=whole) as loop:",
        "with f.loop(whole, start=whole) as loop:",
        ("tests/ops/backends/llvm/test_linear.py",),
    ),
    Mutant(
        "XLA computes in the place of kernels",
        f"{OPS}/primitives/lowering.py",
        'if backend == "xla":',
        'if backend in ("xla", "triton-interpret"):',
        ("tests/ops/test_elementwise_tensor_product.py::test_value_and_derivatives",),
    ),
    Mutant(
        "edges of the members of a batch mixed up",
        f"{OPS}/primitives/forms.py",
        'step = num_rows if name.endswith("_order") else num_nodes',
        "step = num_nodes",
        ("tests/ops/primitives/test_primitive.py::test_vmap",),
    ),
    Mutant(
        "code that others wrote is run from the cache",
        f"{OPS}/_cache.py",
        "            if not fault:\n                return file.read()",
        "            if regular:\n                return file.read()",
        ("tests/ops/backends/test_cache_safety.py",),
    ),
    Mutant(
        "an array that several Triton kernels add to is several arrays",
        f"{OPS}/backends/triton/runtime/launch.py",
        "operand_output_aliases=dict(aliases)",
        "operand_output_aliases={}",
        (
            "tests/ops/backends/triton/test_runtime_launch.py::"
            "test_an_output_that_several_kernels_add_to_is_one_array",
        ),
    ),
    Mutant(
        "offsets of rows of 32 bits in a form's kernel",
        f"{OPS}/backends/triton/emit/form_kernel.py",
        'self.emit("row = next_row.to(tl.int64)")',
        'self.emit("row = next_row")',
        ("tests/emulator/test_offsets.py",),
    ),
    Mutant(
        "offsets of rows of 32 bits in a Linear's kernel",
        f"{OPS}/backends/triton/emit/linear_kernel.py",
        't.emit(f"down = (number // {across}).to(tl.int64)")',
        't.emit(f"down = number // {across}")',
        ("tests/emulator/test_offsets.py",),
    ),
    Mutant(
        "offsets of nodes of 32 bits in a form's kernel over rows",
        f"{OPS}/backends/triton/emit/form_kernel.py",
        'self.emit(f"{name[:-1]} = {load}.to(tl.int64)")',
        'self.emit(f"{name[:-1]} = {load}")',
        ("tests/emulator/test_offsets.py",),
    ),
    Mutant(
        "offsets of sets of 32 bits in a Linear's kernel",
        f"{OPS}/backends/triton/emit/linear_kernel.py",
        't.emit("set = tl.load(set_index_ptr + row).to(tl.int64)")',
        't.emit("set = tl.load(set_index_ptr + row)")',
        ("tests/emulator/test_offsets.py",),
    ),
    Mutant(
        "offsets of nodes of 32 bits in the backward of a node's kernel",
        f"{OPS}/backends/triton/emit/node_kernel.py",
        't.emit("node = tl.program_id(0).to(tl.int64)")',
        't.emit("node = tl.program_id(0)")',
        ("tests/emulator/test_offsets.py",),
    ),
    Mutant(
        "offsets of sets of 32 bits in a node's kernel",
        f"{OPS}/backends/triton/emit/node_emitter.py",
        'self.emit("set_index = tl.load(set_index_ptr + node).to(tl.int64)")',
        'self.emit("set_index = tl.load(set_index_ptr + node)")',
        ("tests/emulator/test_offsets.py",),
    ),
    Mutant(
        "a barrier of a sequence is not emitted",
        f"{OPS}/backends/triton/emit/program.py",
        "if k in guarded:",
        "if k in guarded and k != max(guarded):",
        ("tests/ops/transforms/sequence/test_triton.py::test_every_barrier_is_in_the_text",),
    ),
    Mutant(
        "no barrier before a step that writes what another has read",
        f"{OPS}/backends/triton/emit/program.py",
        " or _meet(before[0], writes)",
        "",
        (
            "tests/ops/transforms/sequence/test_triton.py::"
            "test_barriers_stand_between_steps_that_touch_the_same_memory",
        ),
    ),
    Mutant(
        "numbers of bfloat16 are multiplied by their bits",
        f"{OPS}/backends/triton/runtime/interpret.py",
        "if handle.dtype.scalar != tl.bfloat16:",
        "if handle.dtype.scalar is not None:",
        ("tests/ops/backends/test_fused_kernels.py::test_low_precision_errs_as_e3nn_does",),
    ),
    Mutant(
        "rows beyond the last one are in gradients of parameters",
        f"{OPS}/backends/triton/emit/fused_gradients.py",
        'self.emit("keep = present")',
        'self.emit("keep = inside >= 0")',
        ("tests/ops/backends/test_fused_kernels.py::test_gradients_equal_e3nn",),
    ),
    Mutant(
        "Linears of bfloat16 multiply in float32",
        f"{OPS}/backends/triton/emit/emitter.py",
        'return self.name(f"tl.load({address}, mask={mask}, other=0.0)")',
        "return self.load(address, mask)",
        ("tests/emulator/test_cases.py::test_linears_multiply_on_the_matrix_unit",),
    ),
    # the models
    Mutant(
        "power of the cutoff's envelope",
        f"{MODELS}/radial.py",
        "(1 - x) ** 3 * series",
        "(1 - x) ** 2 * series",
        ("tests/models/test_radial.py",),
    ),
    Mutant(
        "edges of padding reach real atoms",
        f"{MODELS}/radial.py",
        "real = jnp.any(vectors != 0, axis=-1)",
        "real = jnp.any(vectors == vectors, axis=-1)",
        ("tests/models/test_potential.py::test_padding_is_neutral",),
    ),
    Mutant(
        "sign of the forces",
        f"{MODELS}/potential.py",
        "-gradients[0]",
        "gradients[0]",
        ("tests/models/test_potential.py::test_forces_are_minus_the_gradient",),
    ),
    Mutant(
        "sign of the stress",
        f"{MODELS}/potential.py",
        "virial = gradients[1]",
        "virial = -gradients[1]",
        ("tests/models/test_potential.py::test_stress_is_the_strain_derivative_over_the_volume",),
    ),
    # the data
    Mutant(
        "senders of a batch not moved to their structure",
        f"{DATA}/batching.py",
        "np.concatenate([index + offsets, loops])",
        "np.concatenate([index, loops])",
        ("tests/data/test_batching.py",),
    ),
    Mutant(
        "images of neighbours in small cells missing",
        f"{DATA}/neighbors.py",
        "reach = cutoff if pbc.any() else min(cutoff, size)",
        "reach = min(cutoff, size)",
        ("tests/data/test_neighbors.py",),
    ),
    Mutant(
        "forces of an npz file left in kcal/mol",
        f"{DATA}/readers/format.py",
        '"forces": energy / length',
        '"forces": 1.0 / length',
        ("tests/data/readers/test_readers.py",),
    ),
    # training and what comes after it
    Mutant(
        "padding counted in the errors of forces",
        f"{TRAINING}/metrics.py",
        "(labels.forces_mask & graph.node_mask)[:, None]",
        "(labels.forces_mask & graph.node_mask)[:, None] | True",
        ("tests/train/test_metrics.py",),
    ),
    Mutant(
        "state of the optimiser not restored",
        f"{TRAINING}/loop.py",
        "state, at = resume[0], Position(**resume[1])",
        "state, at = resume[0].replace(optimizer=state.optimizer), Position(**resume[1])",
        ("tests/train/run/test_resume.py::test_an_interrupted_run_ends_like_one_that_was_not",),
    ),
    Mutant(
        "settings beside resume= ignored",
        f"{TRAINING}/run/resume.py",
        'others = [name for name in given if name not in ("resume", *CHANGEABLE, *_RADIAL)]',
        "others = []",
        ("tests/train/run/test_resume.py::test_what_cannot_be_resumed_is_refused",),
    ),
    Mutant(
        "Calculator without reference energies",
        "eqfuse/inference/predict.py",
        "sample.in_structure(energies + self.references[sample.species])",
        "sample.in_structure(energies)",
        (
            "tests/inference/test_calculator.py::test_isolated_atoms_have_the_energies_that_were_given",
        ),
    ),
    Mutant(
        "outputs of a native call that are operands are zero",
        "eqfuse/ops/primitives/layer.py",
        "outputs.append(arrays[passed])",
        "outputs.append(jnp.zeros_like(arrays[passed]))",
        (
            "tests/ops/test_fused_argument.py::"
            "test_native_calls_of_whole_ops_equal_e3nn_in_all_orders",
        ),
    ),
)

"""The tests of `-m quick`: at most three minutes on two cores, and some of every part.

An entry is the beginning of the ids of some tests, without `tests/`. What it names of the slow ones
does not become quick. The faults of `tests.faults` are all caught by these, too.
"""

OPS = (
    "ops/test_backend.py",
    "ops/backends/test_cache_safety.py",
    "ops/test_channelwise_tensor_product.py::test_value_and_derivatives[graph-float64-",
    "ops/backends/triton/test_compiled_kernels.py::test_nequip_compiles_without_spilling[forward-sm_90",
    "ops/primitives/test_control_flow.py::test_loops_are_those_of_python[graph-scan-llvm",
    "ops/primitives/test_control_flow.py::test_loops_are_those_of_python[rows-while_loop-",
    "ops/test_e3nn_names.py::test_gate_and_scalar_first",
    "ops/test_edges_out_of_range.py::test_the_message_names_the_ends_and_their_range",
    "ops/test_elementwise_tensor_product.py::test_value_and_derivatives[mul-33-float64-",
    "ops/ir/test_form.py",
    "ops/transforms/fuse/test_fuse.py::test_a_product_on_a_graph[where",
    "ops/transforms/fuse/test_fuse_layers.py::test_a_gate_behind_it[skip",
    "ops/test_graph_tensor_product.py::test_half_precision_is_rounded_once[mul-5-bfloat16-",
    "ops/test_graph_tensor_product.py::test_value_and_derivatives[mul-33-float64-",
    "ops/test_graph_tensor_product.py::test_errors_name_both_shapes",
    "ops/backends/triton/test_handover.py",
    "ops/backends/triton/test_interpreted_kernels.py::test_every_element_is_written_and_the_same_twice[graph",
    "ops/backends/test_launches.py::test_the_graph_product_is_one_launch_each_way[forward",
    "ops/test_linear_modules.py::test_linear_is_e3nns[llvm-",
    "ops/test_linear_modules.py::test_linear_is_e3nns[xla-plain",
    "ops/backends/llvm/test_llvm.py::test_random_forms_and_their_gradients[0-",
    "ops/backends/llvm/test_llvm.py::test_random_forms_and_their_gradients[3-",
    "ops/backends/llvm/test_llvm_fused.py::test_all_orders_equal_e3nn[rows-linear",
    "ops/backends/llvm/test_llvm_linear.py::test_random_mixings_and_their_derivatives",
    "ops/primitives/test_primitive.py::test_vmap[x-",
    "ops/backends/triton/test_ptxas.py::test_every_nvidia_target_compiles",
    "ops/test_show.py",
    "ops/test_symmetric_contraction.py::test_value_and_derivatives[two-factors",
    "ops/test_tensor_product.py::test_value_and_derivatives[norm-float64-",
    "ops/test_tensor_product.py::test_value_and_derivatives[uvuv-expanded-float64-",
    "ops/test_tensor_product.py::test_errors_name_what_is_wrong",
    "ops/test_tensor_product_linear.py::test_all_orders_equal_e3nn[graph-gate-skip-llvm",
    "ops/test_tensor_product_linear.py::test_all_orders_equal_e3nn[graph-gate-skip-triton",
    "ops/test_tensor_square.py::test_values_irreps_and_zero_flags[component-False-2x0e",
    "ops/backends/triton/test_triton_runtime.py",
    "ops/test_weighted_channels.py::test_value_and_derivatives[not sorted-float64-",
)
MODELS = (
    "models/test_allegro.py::test_paths_are_those_reached_and_needed",
    "models/test_build.py::test_unknown",
    "models/test_mace.py::test_features_are_those_reached_and_needed",
    "models/test_nequip.py::test_hidden_irreps_are_those_reached_and_needed",
    "models/test_potential.py::test_forces_are_minus_the_gradient[nequip-True",
    "models/test_potential.py::test_padding_is_neutral[nequip",
    "models/test_potential.py::test_stress_is_the_strain_derivative_over_the_volume[nequip",
    "models/test_radial.py::test_polynomial_cutoff",
    "models/test_radial.py::test_bessel_basis_is_orthonormal",
    "models/test_radial.py::test_lengths_and_directions",
)
DATA = (
    "data/test_batching.py",
    "data/test_dataset.py",
    "data/readers/test_embedded.py",
    "data/test_neighbors.py",
    "data/readers/test_readers.py",
    "data/test_references.py",
    "data/test_tetris.py",
)
TRAINING = (
    "inference/test_calculator.py::test_isolated_atoms_have_the_energies_that_were_given",
    "train/settings/test_command.py::test_help_version_and_configuration_need_no_run",
    "inference/test_evaluate.py::test_errors_are_those_of_the_predictions",
    "train/test_flat.py",
    "train/test_metrics.py",
    "train/test_optimizer.py",
    "train/settings/test_options.py",
    "train/run/test_resume.py::test_an_interrupted_run_ends_like_one_that_was_not[6",
    "train/run/test_resume.py::test_what_cannot_be_resumed_is_refused",
    "train/run/test_stopping.py::test_a_signal_is_noted_and_its_handler_comes_back",
    "train/test_tetris_run.py::test_too_few_steps_fail_and_are_profiled",
)
OTHERS = (
    "benchmarks/test_account.py",
    "benchmarks/test_record.py",
    "faults/test_faults.py",
    "test_imports.py",
    "test_quick.py",
)
QUICK = (*OPS, *MODELS, *DATA, *TRAINING, *OTHERS)

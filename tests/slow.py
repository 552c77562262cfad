"""Tests that only `-m slow` runs: those that take longest, beside others of the same thing.

An entry is the beginning of the ids of some tests, without `tests/`; others are marked where they
are written.
"""

OPS = (
    "ops/test_compile_counts.py::test_ten_layers",
    "ops/test_compiled_kernels.py::test_a_contraction_compiles_without_spilling[double",
    "ops/test_elementwise_tensor_product.py::test_equivariance[l3-both-parities",
    "ops/test_fuse_a_layer.py::test_a_fused_layer_is_the_layer[xla]",
    "ops/test_fuse_a_layer.py::test_functions_are_the_modules[xla]",
    "ops/test_fused_compiled.py::test_other_dtypes_compile_without_spilling",
    "ops/test_interpreted_against_native.py::test_both_kernels_equal_the_definition[MACE",
    "ops/test_interpreted_against_native.py::test_both_kernels_equal_the_definition[NequIP l<=3",
    "ops/test_interpreted_against_native.py::test_both_kernels_equal_the_definition[contraction",
    "ops/test_launches.py::test_launches_of_a_training_step",
    "ops/test_linear_e3nn_options.py::test_parameters_values_and_gradients_are_e3nns[per-channel-x",
    "ops/test_linear_e3nn_options.py::test_parameters_values_and_gradients_are_e3nns[channels-",
    "ops/test_linear_e3nn_options.py::test_parameters_values_and_gradients_are_e3nns[weights-x",
    "ops/test_linear_modules.py::test_gradients_of_many_rows_are_sums_of_parts",
    "ops/test_llvm_machine.py::test_more_kernels_than_a_module_of_handlers_has",
    "ops/test_not_finite_operands.py::test_where_they_arrive[rows",
    "ops/test_shard_map_gradients.py::test_two_host_devices",
    "ops/test_tensor_product.py::test_equivariance[l3-both-parities",
    "ops/test_tensor_product.py::test_equivariance[uvuv-expanded",
)
MODELS = (
    "convert/test_fine_tuning.py::test_it_learns_with_fewer_elements",
    "convert/test_mace_parity.py::test_energies_forces_and_stress_are_those_of_mace[medium-float32",
    "convert/test_mace_parity.py::test_energies_forces_and_stress_are_those_of_mace[density-float32",
    "convert/test_mace_parity.py::test_energies_forces_and_stress_are_those_of_mace[three_layers",
    "models/test_backends.py::test_float64[mace-xla",
    "models/test_backends.py::test_float64[mace-triton-interpret",
    "models/test_backends.py::test_float64[allegro-triton-interpret",
    "models/test_pairs.py::test_zbl_is_added_to_every_network[mace",
    "models/test_potential.py::test_the_energy_of_an_isolated_atom_is_its_reference[mace",
    "models/test_tetris.py::test_the_tetris_network_needs_50_steps",
    "models/test_tetris.py::test_padding_edges_do_nothing",
)
TRAINING = (
    "benchmarks/test_growth.py::test_three_and_six_layers_have_the_same_triton_kernels[mace",
    "training/test_compilations.py::test_as_many_programs",
    "training/test_elements.py::test_only_the_elements_of_the_data_are_kept[mace",
    "training/test_elements.py::test_only_the_elements_of_the_data_are_kept[allegro",
    "training/test_elements.py::test_frozen_parameters_keep_their_values[adamw",
    "training/test_full_disk.py::test_a_checkpoint_that_fails_at_any_file",
    "training/test_molecule_run.py::test_100_000_frames",
    "training/test_molecule_run.py::test_float64_and_every_optimizer",
    "training/test_molecule_run.py::test_a_run_learns_and_can_be_read_back[mace",
    "training/test_molecule_run.py::test_a_run_learns_and_can_be_read_back[allegro",
    "training/test_parallel.py::test_a_signal_to_one_process",
    "training/test_parallel.py::test_gradients_are_those_of_one_device[mace",
    "training/test_parallel.py::test_one_process_needs_no_other",
    "training/test_parallel.py::test_two_devices_and_two_processes",
    "training/test_programs.py::test_old_ones_are_removed",
    "training/test_public_data.py::test_md22_is_read_in_its_own_layout",
    "training/test_resume.py::test_a_run_that_has_nothing_left_to_do_keeps_its_metrics[8",
    "training/test_resume.py::test_an_interrupted_run_ends_like_one_that_was_not[8",
    "training/test_start.py::test_an_interrupted_one_ends_like_one_that_was_not[0",
    "training/test_tetris_run.py::test_float64",
    "training/test_tetris_run.py::test_seed_0_learns_all_shapes_within_100_steps[tetris",
)
SLOW = (*OPS, *MODELS, *TRAINING)

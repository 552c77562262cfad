"""Tests that only `-m slow` runs: those that take longest, beside others of the same thing.

By file, without `tests/`: regular expressions of which one matches the beginning of the name of the
test. Others are marked where they are written.
"""

SLOW = {
    "attack/test_attack.py": (r"test_what_is_no_clear_line\[.*-[12]\]",),
    "benchmarks/test_growth.py": (r"test_three_and_six_layers_have_the_same_triton_kernels\[mace",),
    "convert/test_fine_tuning.py": (r"test_it_learns_with_fewer_elements",),
    "convert/test_mace_parity.py": (
        r"test_energies_forces_and_stress_are_those_of_mace\[(medium|large|small)",
        r"test_energies_forces_and_stress_are_those_of_mace\[density-float32",
        r"test_energies_forces_and_stress_are_those_of_mace\[medium-float32",
        r"test_energies_forces_and_stress_are_those_of_mace\[three_layers",
    ),
    "models/test_allegro.py": (
        r"test_an_atom_feels_those_within_its_cutoff_and_no_others\[nequip",
    ),
    "models/test_backends.py": (
        r"test_float32_is_as_good_as_that_of_e3nn\[.*xla",
        r"test_float64\[(.*xla|(allegro|mace)-llvm)",
        r"test_float64\[allegro-triton-interpret",
        r"test_float64\[mace-triton-interpret",
        r"test_float64\[mace-xla",
    ),
    "models/test_build.py": (r"test_ops_are_counted_and_told_what_runs_them\[(mace|nequip)",),
    "models/test_mlp.py": (r"test_the_layers_are_those_of_e3nn\[.*xla",),
    "models/test_networks.py": (
        r"test_a_graph_without_edges\[(Neq|All)",
        r"test_every_output_irrep_is_equivariant\[(?!Alle)",
        r"test_no_parameter_is_idle\[.*settings[13-57-9]",
    ),
    "models/test_pairs.py": (
        r"test_zbl_is_added_to_every_network\[mace",
        r"test_zbl_is_added_to_every_network\[nequip",
    ),
    "models/test_potential.py": (
        r"test_a_batch_gives_what_its_members_give\[(allegro|mace)",
        r"test_an_isolated_atom\[(allegro|mace)",
        r"test_energy_and_forces_are_smooth_at_the_cutoff\[allegro",
        r"test_energy_is_invariant_and_forces_turn\[(mace|allegro)-.*True",
        r"test_gradients_for_training_are_finite_and_blind_to_padding\[allegro",
        r"test_molecules_far_apart_do_not_see_each_other\[(nequip|mace)",
        r"test_padding_is_neutral\[(nequip|allegro)",
        r"test_scale_and_shift_are_parameters\[(allegro|mace)",
        r"test_second_derivatives_are_finite_at_zero_length\[(allegro|mace)",
        r"test_the_energy_of_an_isolated_atom_is_its_reference\[allegro",
        r"test_the_energy_of_an_isolated_atom_is_its_reference\[mace",
    ),
    "models/test_radial.py": (r"test_radial_networks_are_those_of_e3nn\[(hidden[^1]|.*xla)",),
    "models/test_tetris.py": (
        r"test_padding_edges_do_nothing",
        r"test_the_tetris_network_needs_50_steps",
    ),
    "ops/test_activation.py": (
        r"test_activations_are_as_exact_as_e3nns\[.*(xla|float64)",
        r"test_any_function_is_an_activation\[.*(xla|triton)",
    ),
    "ops/test_channelwise_tensor_product.py": (
        r"test_the_backend_e3nn_is_the_same\[l3",
        r"test_value_and_derivatives\[(.*-xla|.*float32|l3|graph-mul)",
    ),
    "ops/test_compile_counts.py": (r"test_ten_layers",),
    "ops/test_compiled_kernels.py": (
        r"test_a_contraction_compiles_without_spilling\[double",
        r"test_nequip_compiles_without_spilling\[(double|forward-sm_80)",
    ),
    "ops/test_control_flow.py": (
        r"test_loops_are_those_of_python\[.*(xla|(linear|contraction|fused).*llvm)",
    ),
    "ops/test_e3nn_arguments.py": (
        r"test_parameters_of_another_width_promote\[.*(xla|gate)",
        r"test_parameters_widen_half_precision_features\[.*bfloat16",
        r"test_without_jit\[xla",
    ),
    "ops/test_e3nn_names.py": (r"test_random_irreps\[[2-9]",),
    "ops/test_edges_out_of_range.py": (
        r"test_an_index_of_weights_out_of_range_is_the_nearest\[.*xla",
        r"test_traced_ends_are_ordered_as_those_on_the_host\[40-67108864",
    ),
    "ops/test_elementwise_tensor_product.py": (
        r"test_equivariance\[.*(l3|xla)",
        r"test_equivariance\[l3-both-parities",
        r"test_value_and_derivatives\[(.*float32|l3|cut)",
        r"test_value_and_derivatives\[(?!mixed-).*-xla",
    ),
    "ops/test_fuse_a_layer.py": (
        r"test_a_fused_layer_is_the_layer\[xla\]",
        r"test_functions_are_the_modules\[xla\]",
    ),
    "ops/test_fused_compiled.py": (
        r"test_fused_kernels_compile_without_spilling\[(nequip-16-l1-sm_90|rows-16-l1-sm_80|rows-16-l1-gfx)",
        r"test_kernels_of_linear_compile_without_spilling\[(.-sm_80|3-)",
        r"test_other_dtypes_compile_without_spilling",
    ),
    "ops/test_fused_second_order.py": (
        r"test_gradients_of_a_loss_on_forces_equal_e3nns\[(.*xla|skip-tri)",
    ),
    "ops/test_graph_tensor_product.py": (
        r"test_equivariance\[.*(l3|xla)",
        r"test_half_precision_is_rounded_once\[.*(-float16|xla)",
        r"test_value_and_derivatives\[(?!mul-5-|mixed-).*-xla",
        r"test_value_and_derivatives\[(none|l3|mul-600|not-reg|one-y-by|mul-1-)",
        r"test_value_and_derivatives\[.*float32",
    ),
    "ops/test_interpreted_against_native.py": (
        r"test_both_kernels_equal_the_definition\[MACE",
        r"test_both_kernels_equal_the_definition\[NequIP l<=3",
        r"test_both_kernels_equal_the_definition\[contraction",
    ),
    "ops/test_launches.py": (r"test_launches_of_a_training_step",),
    "ops/test_linear_e3nn_options.py": (
        r"test_backend_e3nn",
        r"test_parameters_values_and_gradients_are_e3nns\[(?!unsimplified-indexed)",
        r"test_parameters_values_and_gradients_are_e3nns\[channels-",
        r"test_parameters_values_and_gradients_are_e3nns\[per-channel-x",
        r"test_parameters_values_and_gradients_are_e3nns\[weights-x",
    ),
    "ops/test_linear_modules.py": (
        r"test_gradients_of_many_rows_are_sums_of_parts",
        r"test_linear_is_e3nns\[xla-(indexed|biased)",
        r"test_linear_sum_is_a_sum\[xla",
    ),
    "ops/test_llvm.py": (r"test_random_forms_and_their_gradients\[.*-avx\]",),
    "ops/test_llvm_fused.py": (
        r"test_all_orders_equal_e3nn\[(?!graph-gate-skip|rows-gate|rows-linear)",
    ),
    "ops/test_llvm_linear.py": (r"test_random_mixings_and_their_derivatives\[.*-avx\]",),
    "ops/test_llvm_machine.py": (
        r"test_jax_goes",
        r"test_kernels_are_found",
        r"test_more_kernels_than_a_module_of_handlers_has",
        r"test_processes_that_fill",
    ),
    "ops/test_not_finite_operands.py": (r"test_where_they_arrive\[rows",),
    "ops/test_primitive.py": (
        r"test_hessian\[.*xla",
        r"test_third_derivative\[xla",
        r"test_vmap\[.*xla",
        r"test_vmap_of_vmap_of_gradients\[.*xla",
    ),
    "ops/test_shard_map_gradients.py": (r"test_two_host_devices",),
    "ops/test_symmetric_contraction.py": (
        r"test_the_backend_e3nn_is_the_definition\[(three|two|channels)",
        r"test_value_and_derivatives\[(three-factors|.*float32)",
    ),
    "ops/test_tensor_product.py": (
        r"test_equivariance\[.*(l3|xla)",
        r"test_equivariance\[l3-both-parities",
        r"test_equivariance\[uvuv-expanded",
        r"test_half_precision_is_rounded_once\[.*(-float16|xla)",
        r"test_value_and_derivatives\[(?!mul-5-|mixed-).*-xla",
        r"test_value_and_derivatives\[(none|regroup|l3|mul-600|not-reg|one-y-by|mul-1-)",
        r"test_value_and_derivatives\[.*float32",
    ),
    "ops/test_tensor_product_linear.py": (
        r"test_all_orders_equal_e3nn\[(.*-xla|rows-(many|gate|fully))",
        r"test_kernels_are_bitwise_repeatable\[rows-indexed",
        r"test_launches_of_forward_and_backward\[(?!rows-gate|graph-gate)",
        r"test_low_precision_errs_as_e3nn_does\[.*-xla",
        r"test_parameters_are_e3nns\[rows",
    ),
    "ops/test_tensor_square.py": (r"test_values_irreps_and_zero_flags\[(component-F.*3x1o|norm-)",),
    "training/test_bad_input.py": (r"test_a_file_that_val",),
    "training/test_calculator.py": (
        r"test_atoms_far",
        r"test_atoms_that_come",
    ),
    "training/test_compilations.py": (r"test_as_many_programs",),
    "training/test_elements.py": (
        r"test_frozen_parameters_keep_their_values\[adamw",
        r"test_only_the_elements_of_the_data_are_kept\[allegro",
        r"test_only_the_elements_of_the_data_are_kept\[mace",
    ),
    "training/test_evaluate.py": (r"test_predictions_have",),
    "training/test_full_disk.py": (r"test_a_checkpoint_that_fails_at_any_file",),
    "training/test_molecule_run.py": (
        r"test_100_000_frames",
        r"test_a_run_learns_and_can_be_read_back\[allegro",
        r"test_a_run_learns_and_can_be_read_back\[mace",
        r"test_float64_and_every_optimizer",
        r"test_rmd17_and_iso",
        r"test_several_files",
        r"test_stress_is_trained",
        r"test_stress_of_some",
    ),
    "training/test_parallel.py": (
        r"test_a_signal_to_one_process",
        r"test_gradients_are_those_of_one_device\[mace",
        r"test_one_process_needs_no_other",
        r"test_two_devices_and_two_processes",
    ),
    "training/test_programs.py": (r"test_old_ones_are_removed",),
    "training/test_public_data.py": (r"test_md22_is_read_in_its_own_layout",),
    "training/test_resume.py": (
        r"test_a_finished_run_can",
        r"test_a_run_that_ended_within",
        r"test_a_run_that_has_noth",
        r"test_a_run_that_has_nothing_left_to_do_keeps_its_metrics\[8",
        r"test_an_interrupted_run_ends_like_one_that_was_not\[8",
    ),
    "training/test_start.py": (r"test_an_interrupted_one_ends_like_one_that_was_not\[0",),
    "training/test_stopping.py": (r"test_a_run_whose_terminal",),
    "training/test_tetris_run.py": (
        r"test_float64",
        r"test_seed_0_learns_all_shapes_within_100_steps\[tetris",
    ),
}

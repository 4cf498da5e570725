# Lists of tests (folders and files): those of `make test`, those that also run with the instructions of
# AVX2 only, and those of each package. tests/layout/test_parts.py compares the lists with the existing files.

# The tests that every change must pass. They take minutes and need only the environments of the demo: no database,
# browser or tensorflow. The longest files come first, beginning with a small chain that is killed and resumed.
CORE_BLOCKS := \
  tests/pipeline/test_whole_pipeline.py \
  tests/stages/predict/test_predict.py \
  tests/stages/prepare/test_task.py \
  tests/launch/test_chain.py \
  tests/stages/watershed/test_blockwise.py \
  tests/stages/segment/test_task.py \
  tests/stages/agglomerate/test_graph_agglomeration.py \
  tests/stages/agglomerate/test_blockwise.py \
  tests/stages/agglomerate/test_adjacency.py \
  tests/stages/agglomerate/test_face_sums.py \
  tests/stages/agglomerate/test_lsd_affinities.py \
  tests/stages/agglomerate/test_merge_tree.py \
  tests/stages/agglomerate/test_region_arrays.py \
  tests/stages/agglomerate/test_scoring.py \
  tests/contract \
  tests/layout \
  tests/metrics \
  tests/network \
  tests/handoff/test_watershed_to_agglomerate.py \
  tests/runtime/test_blockwise.py \
  tests/runtime/test_chunk_files.py \
  tests/runtime/test_command.py \
  tests/runtime/test_formats.py \
  tests/runtime/test_formats_axes.py \
  tests/runtime/test_formats_refusals.py \
  tests/runtime/test_interruption.py \
  tests/runtime/test_run_folder_errors.py \
  tests/runtime/test_volumes.py \
  tests/stages/prepare/test_block_shape.py \
  tests/stages/prepare/test_cli.py \
  tests/stages/prepare/test_components.py \
  tests/stages/prepare/test_findings.py \
  tests/stages/prepare/test_greyscale.py \
  tests/stages/prepare/test_look.py \
  tests/stages/prepare/test_neuron_ids.py \
  tests/stages/prepare/test_placement.py \
  tests/stages/prepare/test_resampling.py \
  tests/stages/predict/test_neighborhood.py \
  tests/stages/predict/test_refusals.py \
  tests/stages/predict/test_resources.py \
  tests/stages/predict/test_tiling.py \
  tests/stages/watershed/test_flood.py \
  tests/stages/watershed/test_fragments.py \
  tests/stages/watershed/test_ids.py \
  tests/stages/watershed/test_mutex.py \
  tests/stages/watershed/test_nodes.py \
  tests/stages/watershed/test_sections.py \
  tests/stages/watershed/test_windows_and_distances.py \
  tests/stages/segment/test_components.py \
  tests/stages/segment/test_hierarchy.py \
  tests/stages/segment/test_relabel.py \
  tests/stages/segment/test_sizes.py \
  tests/stages/segment/test_tables.py \
  tests/stages/segment/test_threshold_selection.py \
  tests/stages/evaluate/test_report_words.py \
  tests/stages/evaluate/test_methods.py \
  tests/stages/evaluate/test_neurites.py \
  tests/stages/evaluate/test_report_curves.py \
  tests/stages/evaluate/test_report_figures.py \
  tests/stages/evaluate/test_run_length.py \
  tests/stages/evaluate/test_scores_file.py \
  tests/stages/evaluate/test_seams.py \
  tests/stages/evaluate/test_skeleton_files.py \
  tests/stages/evaluate/test_skeletonise.py \
  tests/launch/test_completion.py \
  tests/launch/test_init.py \
  tests/launch/test_json.py \
  tests/launch/test_next_steps.py \
  tests/launch/test_plan.py \
  tests/launch/test_propose.py \
  tests/launch/test_report.py \
  tests/launch/test_schema.py \
  tests/launch/test_start_of_command.py \
  tests/launch/test_status.py \
  tests/security/test_code.py \
  tests/wrappers/test_shell.py
CORE_TRAINING := \
  tests/training/test_trainer.py \
  tests/training/test_early_stopping.py \
  tests/training/test_data_cases.py \
  tests/training/test_pipeline.py \
  tests/training/test_lsd_targets.py \
  tests/training/test_augment_intensities.py \
  tests/training/test_augmentation_executors.py \
  tests/training/test_initial_weights.py \
  tests/training/test_averaged_weights.py \
  tests/training/test_backends.py \
  tests/training/test_best.py \
  tests/training/test_boundaries.py \
  tests/training/test_loss_bands.py \
  tests/training/test_losses.py \
  tests/training/test_lsd_node.py \
  tests/training/test_resolve_augmentation.py \
  tests/training/test_sampling.py \
  tests/training/test_schedule.py \
  tests/training/test_shared_cores.py \
  tests/training/test_training_precision.py \
  tests/stages/train-lsd/test_task.py \
  tests/stages/train-acrlsd/test_task.py

# Tests of code that depends on the instructions of the CPU. `make test-avx2` runs them as on a CPU with AVX2 only.
AVX2_BLOCKS := tests/stages/predict/test_predict.py tests/benchmarks/test_gpu.py tests/benchmarks/test_rows.py tests/network tests/stages/predict/test_refusals.py
AVX2_TRAINING := \
  tests/training/test_trainer.py \
  tests/training/test_gpu_benchmark.py \
  tests/training/test_gpu_training.py \
  tests/training/test_quick_validate.py \
  tests/training/test_gpu_stream.py \
  tests/training/test_initial_weights.py \
  tests/training/test_lsd_targets_torch.py \
  tests/training/test_averaged_weights.py \
  tests/training/test_losses.py \
  tests/training/test_training_precision.py

# The tests of each package, for `make test PACKAGE=watershed`; they take less than a minute. For the largest packages,
# only the fast tests are listed.
TESTS_OF_contract := tests/contract
TESTS_OF_command := \
  tests/runtime/test_command.py \
  tests/runtime/test_comfort.py \
  tests/runtime/test_progress.py \
  tests/launch/test_start_of_command.py \
  tests/launch/test_completion.py
TESTS_OF_runtime := \
  tests/runtime/test_blockwise.py \
  tests/runtime/test_failed_blocks.py \
  tests/runtime/test_chunk_files.py \
  tests/runtime/test_formats.py \
  tests/runtime/test_formats_metadata.py \
  tests/runtime/test_formats_axes.py \
  tests/runtime/test_formats_refusals.py \
  tests/runtime/test_interruption.py \
  tests/runtime/test_run_folder_errors.py \
  tests/runtime/test_volumes.py \
  tests/runtime/test_stage_lock.py \
  tests/runtime/test_authenticated_proxy.py \
  tests/runtime/test_memory.py \
  tests/runtime/test_cores.py
TESTS_OF_network := tests/network tests/stages/predict/test_refusals.py
TESTS_OF_metrics := \
  tests/metrics \
  tests/stages/evaluate/test_report_words.py \
  tests/stages/evaluate/test_run_length.py \
  tests/stages/evaluate/test_neurites.py
TESTS_OF_descriptors := tests/stages/agglomerate/test_lsd_affinities.py tests/stages/evaluate/test_lsd_error.py
TESTS_OF_launch := \
  tests/launch/test_chain.py \
  tests/launch/test_select_checkpoint.py \
  tests/launch/test_cluster_table.py \
  tests/launch/test_completion.py \
  tests/launch/test_compose.py \
  tests/launch/test_init.py \
  tests/launch/test_json.py \
  tests/launch/test_next_steps.py \
  tests/launch/test_pins.py \
  tests/launch/test_plan.py \
  tests/launch/test_propose.py \
  tests/launch/test_queue.py \
  tests/launch/test_report.py \
  tests/launch/test_schema.py \
  tests/launch/test_start_of_command.py \
  tests/launch/test_status.py \
  tests/launch/test_view.py \
  tests/launch/test_preflight.py
TESTS_OF_prepare := tests/stages/prepare
TESTS_OF_predict := tests/stages/predict
TESTS_OF_watershed := tests/stages/watershed tests/handoff/test_watershed_to_agglomerate.py
TESTS_OF_agglomerate := tests/stages/agglomerate
TESTS_OF_segment := tests/stages/segment
TESTS_OF_evaluate := tests/stages/evaluate
TESTS_OF_training := tests/training
TESTS_OF_importers := tests/training/test_import_torch.py
TESTS_OF_train-lsd := tests/stages/train-lsd
TESTS_OF_train-acrlsd := tests/stages/train-acrlsd
TESTS_OF_tensorflow := tests/tensorflow/test_environment.py tests/tensorflow/test_network.py
TESTS_OF_view := \
  tests/view/test_environment.py \
  tests/view/test_downsample.py \
  tests/view/test_coarser_levels.py \
  tests/view/test_layers.py \
  tests/view/test_export_shapes.py

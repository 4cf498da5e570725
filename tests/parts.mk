# Lists of tests: what `make test` runs, what runs again on fewer instructions, and the tests of each package. Folders
# and files; tests/layout/test_parts.py compares them with what is there.

# What every change must pass, in minutes, with the environments of the demo alone. Long files come first.
CORE_BLOCKS := \
  tests/pipeline/test_whole_pipeline.py \
  tests/stages/predict/test_predict.py \
  tests/stages/prepare/test_task.py \
  tests/stages/watershed/test_blockwise.py \
  tests/stages/segment/test_task.py \
  tests/stages/agglomerate/test_blockwise.py \
  tests/handoff/test_watershed_to_agglomerate.py \
  tests/contract \
  tests/layout \
  tests/metrics \
  tests/network \
  tests/stages/prepare/test_bricks.py \
  tests/stages/prepare/test_cli.py \
  tests/stages/prepare/test_components.py \
  tests/stages/prepare/test_findings.py \
  tests/stages/prepare/test_greyscale.py \
  tests/stages/prepare/test_look.py \
  tests/stages/prepare/test_neuron_ids.py \
  tests/stages/prepare/test_placement.py \
  tests/stages/predict/test_device_memory.py \
  tests/stages/predict/test_neighborhood.py \
  tests/stages/predict/test_refusals.py \
  tests/stages/predict/test_tiles.py \
  tests/stages/watershed/test_flood.py \
  tests/stages/watershed/test_fragments.py \
  tests/stages/watershed/test_ids.py \
  tests/stages/watershed/test_mutex.py \
  tests/stages/watershed/test_nodes.py \
  tests/stages/watershed/test_sections.py \
  tests/stages/watershed/test_windows_and_distances.py \
  tests/stages/agglomerate/test_adjacency.py \
  tests/stages/agglomerate/test_face_sums.py \
  tests/stages/agglomerate/test_graph_agglomeration.py \
  tests/stages/agglomerate/test_lsd_affinities.py \
  tests/stages/agglomerate/test_merge_tree.py \
  tests/stages/agglomerate/test_region_arrays.py \
  tests/stages/agglomerate/test_scoring.py \
  tests/stages/segment/test_advice.py \
  tests/stages/segment/test_components.py \
  tests/stages/segment/test_hierarchy.py \
  tests/stages/segment/test_relabel.py \
  tests/stages/segment/test_sizes.py \
  tests/stages/segment/test_sorted_ids.py \
  tests/stages/segment/test_tables.py \
  tests/stages/segment/test_thresholds.py \
  tests/stages/evaluate/test_larger_error.py \
  tests/stages/evaluate/test_methods.py \
  tests/stages/evaluate/test_neurites.py \
  tests/stages/evaluate/test_report_curves.py \
  tests/stages/evaluate/test_report_figures.py \
  tests/stages/evaluate/test_run_length.py \
  tests/stages/evaluate/test_scores_file.py \
  tests/stages/evaluate/test_seams.py \
  tests/stages/evaluate/test_skeleton_files.py \
  tests/stages/evaluate/test_skeletonise.py \
  tests/launch/test_chain.py \
  tests/launch/test_json.py \
  tests/launch/test_run_ending.py \
  tests/launch/test_schema.py \
  tests/launch/test_status.py \
  tests/bad_input/test_bad_input.py \
  tests/pipeline/test_archives.py \
  tests/security/test_code.py \
  tests/wrappers/test_shell.py \
  tests/runtime/test_blockwise.py \
  tests/runtime/test_chunk_files.py \
  tests/runtime/test_command.py \
  tests/runtime/test_formats.py \
  tests/runtime/test_interruption.py \
  tests/runtime/test_packed_marks.py \
  tests/runtime/test_processes.py \
  tests/runtime/test_volumes.py
CORE_TRAINING := \
  tests/training/test_trainer.py \
  tests/training/test_lsd_targets.py \
  tests/training/test_losses.py \
  tests/training/test_pipeline.py \
  tests/training/test_sampling.py \
  tests/training/test_schedule.py \
  tests/training/test_lsd_node.py \
  tests/stages/train-lsd/test_task.py \
  tests/stages/train-acrlsd/test_task.py

# Tests whose code depends on the instructions of the CPU: run again as on a CPU with AVX2 only.
AVX2_BLOCKS := tests/benchmarks tests/network tests/stages/predict/test_predict.py
AVX2_TRAINING := tests/training/test_gpu_benchmark.py tests/training/test_trainer.py tests/training/test_losses.py

# `make test PACKAGE=watershed`: the package's own tests, under a minute.
TESTS_OF_contract := tests/contract tests/pipeline/test_archives.py
TESTS_OF_command := tests/runtime/test_command.py tests/monitoring
TESTS_OF_runtime := tests/runtime
TESTS_OF_network := tests/network
TESTS_OF_metrics := tests/metrics
TESTS_OF_descriptors := tests/training/test_lsds_of_segmentations.py
TESTS_OF_launch := tests/launch
TESTS_OF_prepare := tests/stages/prepare
TESTS_OF_predict := tests/stages/predict
TESTS_OF_watershed := tests/stages/watershed
TESTS_OF_agglomerate := tests/stages/agglomerate
TESTS_OF_segment := tests/stages/segment
TESTS_OF_evaluate := tests/stages/evaluate
TESTS_OF_training := tests/training
TESTS_OF_train-lsd := tests/stages/train-lsd
TESTS_OF_train-acrlsd := tests/stages/train-acrlsd
TESTS_OF_tensorflow := tests/tensorflow
TESTS_OF_view := tests/view

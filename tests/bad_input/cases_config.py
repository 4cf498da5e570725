"""Mistakes in the experiment file: its syntax, its keys, lengths, and values that contradict one another."""

from __future__ import annotations

from bad_input.case import Case, Spoil, setting, target, training_volume
from bad_input.lab import Lab, make_sources

CONFIG = 78


def _text(text: str) -> Spoil:
    """The experiment file ends with `text`."""

    def append(lab: Lab) -> None:
        lab.toml.write_text(lab.toml.read_text() + text)

    return append


def _two_volumes(first: float | None, second: float | None, name: str = "b") -> Spoil:
    """Two training volumes with these probabilities."""

    def spoil(lab: Lab) -> None:
        volumes = lab.tables["prepare"]["training"]
        volumes.append({**volumes[0], "name": name})
        for volume, probability in zip(volumes, (first, second), strict=True):
            if probability is not None:
                volume["probability"] = probability
        lab.save()

    return spoil


def _no_file(lab: Lab) -> None:
    lab.toml.unlink()


def _no_text(lab: Lab) -> None:
    lab.toml.write_bytes(b"\xff\xfe\x00e")


def _stray_value(lab: Lab) -> None:
    lab.toml.write_text("predict = 3\n" + "\n".join(lab.toml.read_text().splitlines()[:1]) + "\n")


def _nothing_to_prepare(lab: Lab) -> None:
    lab.tables["prepare"] = {}
    lab.save()


def _unreadable_name(lab: Lab) -> None:
    make_sources(lab)
    lab.set_training(name="../a")


CASES = [
    Case("no experiment.toml in the folder", _no_file, 66, ("experiment.toml", "lsdflow init")),
    Case("a tab and no value after the =", _text("\n[evaluate]\nroi =\t\n"), CONFIG, ("experiment.toml", "line")),
    Case("endless brackets", _text("\n[evaluate]\nroi = " + "[" * 100_000), CONFIG, ("experiment.toml", "levels")),
    Case("endless digits", _text("\n[evaluate]\nroi = " + "9" * 9_999), CONFIG, ("experiment.toml", "64 bits")),
    Case("YAML written into the file", _text("\nwatershed:\n  context: 4\n"), CONFIG, ("experiment.toml", "line")),
    Case("`no` for a switch, as in YAML", setting("watershed", fragments_in_xy="maybe"), CONFIG,
         ("watershed.fragments_in_xy", "experiment.toml", "maybe")),
    Case("the file is no UTF-8 text", _no_text, CONFIG, ("experiment.toml", "not a TOML file", "utf-8")),
    Case("a table written twice", _text('\n[predict]\n[predict]\n'), CONFIG, ("experiment.toml", "line")),
    Case("unknown table [watersheds]", _text("\n[watersheds]\n"), CONFIG,
         ("[watersheds]", "experiment.toml", "did you mean 'watershed'")),
    Case("a value where a table belongs", _stray_value, CONFIG, ("predict must be a table", "experiment.toml")),
    Case("unknown key predict.checkpont", setting("predict", checkpont=4), CONFIG,
         ("predict.checkpont", "experiment.toml", "did you mean 'checkpoint'")),
    Case("unknown key of a training volume", training_volume(labls="x"), CONFIG,
         ("prepare.training.0.labls", "experiment.toml", "did you mean 'labels'")),
    Case("unknown mode", setting("experiment", mode="lsd"), CONFIG, ("experiment.mode", "'acrlsd', 'mtlsd'")),
    Case("unknown profile", setting("experiment", profile="snemi"), CONFIG,
         ("experiment.profile", "'standard' or 'snemi3d'", "snemi")),
    Case("a name with a blank and a `$(...)`", setting("experiment", name="$(touch x) y"), CONFIG,
         ("experiment.name", "experiment.toml", "$(touch x) y")),
    Case("a training volume named ../a", _unreadable_name, CONFIG, ("prepare.training.0.name", "../a")),
    Case("a length without its unit", setting("watershed", block_shape="64"), CONFIG,
         ("watershed.block_shape", "needs its unit", "64 vox")),
    Case("a length with two numbers", setting("watershed", context="4, 4 vox"), CONFIG,
         ("watershed.context", "one number or three")),
    Case("a length that is no number", setting("watershed", context="1.2.3 vox"), CONFIG,
         ("watershed.context", "1.2.3 vox")),
    Case("a length in inches", setting("predict", tile_shape="4 inch"), CONFIG, ("predict.tile_shape", "4 inch")),
    Case("probabilities that do not sum to 1", _two_volumes(0.5, 0.4), CONFIG, ("prepare", "sum to 1", "0.9")),
    Case("a probability for one volume of two", _two_volumes(0.5, None), CONFIG, ("probability", "all or to none")),
    Case("two training volumes of one name", _two_volumes(None, None, "a"), CONFIG, ("same name", "'a', 'a'")),
    Case("nothing to prepare", _nothing_to_prepare, CONFIG, ("nothing to prepare", "[prepare.target]")),
    Case("a raw_range of one value", training_volume(raw_range=[255.0, 255.0]), CONFIG,
         ("prepare.training.0", "two values that differ", "255.0")),
    Case("voxel_size in voxels", target(voxel_size="8 vox"), CONFIG,
         ("prepare.target", "unit of length", "40, 8, 8 nm")),
    Case("an id both ignored and background", training_volume(ignore_ids=[3], background_ids=[3]), CONFIG,
         ("ignore_ids", "background_ids", "[3]")),
    Case("expansion_factor 0", target(expansion_factor=0.0), CONFIG,
         ("prepare.target.expansion_factor", "greater than 0")),
    Case("zero workers", setting("compute", workers=0), CONFIG, ("compute.workers", "greater than or equal to 1")),
    Case("a device that does not exist", setting("compute", device="gpu"), CONFIG, ("compute.device", "gpu")),
    Case("unknown merge function", setting("agglomerate", merge_functions=["medium"]), CONFIG,
         ("agglomerate.merge_functions", "medium", "hist_quant_75")),
    Case("a merge function named twice", setting("agglomerate", merge_functions=["mean", "mean"]), CONFIG,
         ("agglomerate.merge_functions", "twice")),
    Case("thresholds from high to low", setting("segment", thresholds_minmax=[0.9, 0.1]), CONFIG,
         ("segment.thresholds_minmax", "[smaller, larger]", "experiment.toml")),
    Case("a threshold above 1", setting("segment", extra_thresholds=[1.5]), CONFIG,
         ("segment.extra_thresholds", "0 to 1", "1.5", "experiment.toml")),
    Case("a threshold with five decimals", setting("segment", threshold=0.12345), CONFIG,
         ("segment.threshold", "0.0001", "0.12345", "experiment.toml")),
    Case("threshold step 0", setting("segment", thresholds_step=0.0), CONFIG,
         ("segment.thresholds_step", "0.0001 or more", "experiment.toml")),
    Case("LSDs to store in a mode without LSDs", lambda lab: (
            lab.set("experiment", mode="affinities"), lab.set("predict", store_lsds=True))[0], CONFIG,
         ("predict.store_lsds", "affinities"), after="prepare"),
    Case("a negative context", setting("watershed", context="-4 vox"), CONFIG,
         ("watershed.context", "-4", "experiment.toml"), after="prepare"),
    Case("a block of no voxels", setting("watershed", block_shape="0 vox"), CONFIG,
         ("watershed.block_shape", "0", "experiment.toml"), after="prepare"),
    Case("a block of half voxels", setting("watershed", block_shape="100 nm"), CONFIG,
         ("watershed.block_shape", "whole number of voxels", "nearest that fits"), after="prepare"),
    Case("fragment ids beyond 64 bits", setting("watershed", id_mode="blocks", block_shape="4000000 vox"), CONFIG,
         ("watershed.block_shape", "2^63"), after="prepare"),
    Case("a block too large for one flood", setting("watershed", block_shape="2000 vox"), CONFIG,
         ("watershed.block_shape", "at most"), after="prepare"),
    Case("replacing a section that the target does not have", setting("watershed", replace_sections=[99]), CONFIG,
         ("watershed.replace_sections", "0 to 23", "99"), after="prepare"),
    Case("the mongo store without the file of its URI", setting("store", engine="mongo"), CONFIG,
         ("[store] uri_file", "experiment.toml", "MONGO_URI_FILE"), command=("watershed", "validate")),
    Case("the file of the mongo URI does not exist", setting("store", engine="mongo", uri_file="mongo.uri"), 66,
         ("mongo.uri",), command=("watershed", "validate")),
    Case("an option of sbatch that the wrappers set", setting("cluster", options=["--wrap=rm"]), CONFIG,
         ("cluster", "--wrap=rm", "set by the wrappers"), command=("lsdflow", "submit", "--dry-run")),
    Case("a command in a partition's name", setting("cluster", partition_gpu="gpu;reboot"), CONFIG,
         ("cluster.partition_gpu", "gpu;reboot"), command=("lsdflow", "submit", "--dry-run")),
    Case("a misspelt key of the cluster", setting("cluster", partition_gpus="gpu"), CONFIG,
         ("cluster.partition_gpus", "'partition_gpu'", "experiment.toml")),
    Case("memory of a job that is no memory", setting("cluster", watershed={"mem": "lots"}), CONFIG,
         ("cluster.watershed.mem", "lots", "experiment.toml")),
    Case("a target of another voxel size than the training volumes", target(voxel_size="20, 8, 8 nm", truth=None), 76,
         ("another voxel size than the training volumes", "(10.0, 8.0, 8.0) nm", "20.0", "allow_voxel_size_mismatch"),
         training=True),
    Case("a merge function that agglomerate does not compute", setting("segment", merge_function="mean"), CONFIG,
         ("segment.merge_function", "agglomerate.merge_functions: hist_quant_75", "add mean to")),
    Case("pooling by 0", setting("train-lsd", downsample_factors=[[2, 2, 2], [0, 2, 2]]), CONFIG,
         ("train-lsd.downsample_factors.1.0", "greater than or equal to 1"), command=("train-lsd", "validate")),
    Case("an input shape that the network cannot take", setting("train-lsd", input_shape_vox=[197, 197, 197]), CONFIG,
         ("train-lsd.input_shape_vox", "[196, 196, 196] or [198, 198, 198] vox"), command=("train-lsd", "validate")),
    Case("a backend that is not installed", setting("train-lsd", backend="tensorflow"), CONFIG,
         ("train-lsd.backend", "tensorflow", "make setup-tensorflow"), command=("train-lsd", "validate")),
    Case("a sigma larger than the network sees", setting("train-lsd", sigma="1 um"), CONFIG,
         ("train-lsd.sigma", "at most 140, 112, 112 nm", "1000, 1000, 1000 nm", "80 nm"), training=True),
    Case("another sigma for the affinities than for the LSDs", setting("train-acrlsd", sigma="32 nm"), 76,
         ("train-acrlsd", "the same sigma", "24, 24, 24 nm", "32, 32, 32 nm"), training=True),
    Case("a context for seamless fragments, before prepare", setting("agglomerate", context="4 vox"), CONFIG,
         ("agglomerate.context", "watershed.id_mode", "leave context out")),
    Case("edges of LSDs that are not stored", setting("agglomerate", scored_from="lsds"), CONFIG,
         ("agglomerate.scored_from", "predict.store_lsds = true")),
    Case("a tile of half voxels, before prepare", setting("predict", tile_shape="100 nm"), CONFIG,
         ("predict.tile_shape", "whole number of voxels", "nearest that fits"), training=True),
    Case("a region beyond the target, before prepare", setting(
            "predict", roi={"begin": "0 vox", "shape": "25, 8, 8 vox"}), CONFIG,
         ("predict.roi", "inside z[0:24]", "leaves the data")),
    Case("a block of segment of half voxels", setting("segment", block_shape="100 nm"), CONFIG,
         ("segment.block_shape", "whole number of voxels", "nearest that fits")),
    Case("a region to score, but no truth", lambda lab: (
            lab.set_target(truth=None),
            lab.set("evaluate", roi={"begin": "0 vox", "shape": "8 vox"}))[0], 66,
         ("evaluate.roi", "prepare.target.truth")),
    Case("--set without a table", lambda lab: None, CONFIG, ("--set", "table.key=value"),
         command=("lsdflow", "validate", "--set", "workers=3")),
]  # fmt: skip

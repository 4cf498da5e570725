"""Describe a checkpoint from the recipe of its training."""

from __future__ import annotations

from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.manifest import Writer
from lsdflow_network import shapes
from lsdflow_training.recipe import Recipe


def make_bundle(
    recipe: Recipe, iteration: int, training_key: str, validation_loss: float | None, lsd_sha256: str | None
) -> Bundle:
    """Bundle of an iteration; its shapes are those of the trained network itself (acrlsd: the one with 11 channels)."""
    targets = recipe.targets
    return Bundle(
        writer=Writer.of(recipe.stage),
        kind=recipe.kind,
        iteration=iteration,
        unet=recipe.unet,
        outputs=recipe.outputs,
        neighborhood=targets.neighborhood if targets.affinities else (),
        train_input_shape_vox=recipe.shapes.network_input_vox,
        train_output_shape_vox=recipe.shapes.output_vox,
        predict_input_shape_vox=recipe.predict_input_vox,
        predict_output_shape_vox=shapes.output_shape_vox(recipe.unet, recipe.predict_input_vox),
        voxel_size_nm=targets.voxel_size_nm,
        sigma_nm=targets.sigma_nm if recipe.kind != "affinities" else None,
        lsd_bundle_sha256=lsd_sha256,
        training_key=training_key,
        validation_loss=validation_loss,
    )

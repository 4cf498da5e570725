"""lsdflow-network: the 3-D U-Net, its shape arithmetic, its bundles, and inference on one patch."""

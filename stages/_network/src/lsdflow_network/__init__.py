"""lsdflow-network: the 3-D U-Net, its shape arithmetic, its bundles, and running it on one patch."""

"""lsdflow-training: gunpowder pipeline, LSD targets, losses and the training loop of train-lsd and train-acrlsd."""

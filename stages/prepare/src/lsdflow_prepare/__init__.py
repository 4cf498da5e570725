"""prepare: converts volumes of any format to the training and target volumes that all other stages read."""

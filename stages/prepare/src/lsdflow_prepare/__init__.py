"""prepare: turns volumes of any format into the training and target volumes that every other stage reads."""

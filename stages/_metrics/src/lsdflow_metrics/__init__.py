"""Agreement of a segmentation with the truth: additive contingency tables, and the usual scores from them."""

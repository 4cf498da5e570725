"""Agreement of a segmentation with the truth: contingency tables that add up, and the scores of the field from them."""

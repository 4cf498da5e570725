"""What is told without truth: seams at block faces, and where segmentation and network disagree."""

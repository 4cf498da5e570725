"""`lsdflow plan`: what a run will take, from blocks that were measured; and whether it came true."""

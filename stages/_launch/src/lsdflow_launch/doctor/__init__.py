"""`lsdflow doctor`: what this machine, the folder, the store and the cluster have for lsdflow, and what to do."""

"""`lsdflow doctor`: checks the machine, the folder, the store and the cluster, with a fix for each problem."""

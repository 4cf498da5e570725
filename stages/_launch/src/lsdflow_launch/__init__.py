"""The front command of lsdflow: it starts experiments and runs the stages in their order."""

"""The main command of lsdflow: it creates experiments and runs the stages in their order."""

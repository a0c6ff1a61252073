"""The checks' own test: known faults are put into the pipeline one at a time, and the verdict has to turn red."""

"""The checks: one small file each, with a NAME, the parts it NEEDS of every iteration, and `check(evidence)`."""

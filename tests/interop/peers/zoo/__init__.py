"""The parts of ../zoo.py: makers of small runs, and the judge of what UniShard makes of them."""

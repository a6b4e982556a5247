"""The commands, one file per errand; `cli` gathers them."""

"""Which tools agents lack: what judges asked for, what people decided about it, and whether it helped."""

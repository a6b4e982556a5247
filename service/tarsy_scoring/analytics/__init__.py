"""Many scores in few numbers: daily counts, trends, chains and the week."""

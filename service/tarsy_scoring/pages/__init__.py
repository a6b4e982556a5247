"""The pages that people look at: rendered by the server, live where there is JavaScript."""

"""Settings an operator may change: environment variables, the YAML file and the declared gates."""

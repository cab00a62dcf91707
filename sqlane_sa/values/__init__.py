"""Plain values and their rules: what a job, a definition and an outcome are. Standard library and ulid only."""

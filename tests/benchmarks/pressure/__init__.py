"""What a queue does under pressure: each part is a module with `run(options)`, which prints rows of one table."""

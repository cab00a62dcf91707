"""The edges for trying things out: a PostgreSQL server of one's own, and what `sqlane demo` shows on it."""

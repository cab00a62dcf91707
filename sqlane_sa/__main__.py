"""`python -m sqlane_sa` is `sqlane`."""

from sqlane_sa.cli import main

if __name__ == "__main__":
    main(prog_name="sqlane")

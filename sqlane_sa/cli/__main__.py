from sqlane_sa.cli import main

main(prog_name="sqlane")

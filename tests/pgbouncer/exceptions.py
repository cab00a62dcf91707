"""Tests that cannot pass behind a pooler in transaction mode, whatever the product does, and why."""

LISTENS = "notifications do not arrive there; a worker polls"
OLD_SESSIONS = "a setting of the database reaches new sessions only, and the pooler goes on lending the old ones"
OWN_SESSIONS = "it ends or stops a server process as that of one connection, which the pooler lends to others too"
LENT_SESSIONS = "the worker leaves a session that is not its own as it is, with the keepalives of the pooler"
TWO_SYNCS = "pg8000 parses and runs a statement in two messages, and outside a transaction they reach two sessions"
PREPARES = "it has statements prepared, as nobody may behind a pooler"
KEPT_SESSIONS = "the pooler keeps the server's session when a worker closes its own"
TOGETHER = "it is about what is sent together with BEGIN or COMMIT, where statements can be prepared"

EXCEPTIONS = {
    "tests/drain/test_ends.py::test_by_a_lost_connection": OWN_SESSIONS,
    "tests/enqueue/test_first_statement.py::test_a_transaction_is_two_round_trips": TOGETHER,
    "tests/enqueue/test_first_statement.py::test_a_transaction_of_an_event_loop_is_two_round_trips": TOGETHER,
    "tests/enqueue/test_first_statement.py::test_an_interrupt_meanwhile": TOGETHER,
    "tests/enqueue/test_first_statement.py::test_as_many_queues_as_tenants": TOGETHER,
    "tests/enqueue/test_order.py::test_two_processes_with_different_clocks": PREPARES,
    "tests/worker/test_databases.py::test_an_outage_of_the_applications_creator": OWN_SESSIONS,
    "tests/worker/test_databases.py::test_a_read_only_period_ends_without_a_restart": OLD_SESSIONS,
    "tests/worker/test_databases.py::test_every_connection_may_be_terminated": OWN_SESSIONS,
    "tests/worker/test_deadlines.py::test_a_call_that_gets_no_answer_ends_and_the_next_has_a_new_session[pg8000]": (
        TWO_SYNCS
    ),
    "tests/worker/test_deadlines.py::test_a_workers_connections_have_keepalives_and_the_applications_keep_theirs": (
        LENT_SESSIONS
    ),
    "tests/worker/test_ear.py": LISTENS,
    "tests/worker/test_heartbeat.py::test_it_keeps_no_connection_while_there_is_nothing_to_renew": KEPT_SESSIONS,
    "tests/worker/test_idle_transactions.py": LISTENS,
    "tests/worker/test_key_release.py::test_a_job_that_commits_while_its_key_is_freed_starts[wake-ups]": LISTENS,
    "tests/worker/test_keys.py::test_a_job_that_waits_for_its_key_hides_no_later_ones": LISTENS,
    "tests/worker/test_last_step.py::test_a_handler_after_which_psycopg_deallocates": TOGETHER,
    "tests/worker/test_last_step.py::test_a_listener_that_deallocates": TOGETHER,
    "tests/worker/test_last_step.py::test_a_retention_of_zero": TOGETHER,
    "tests/worker/test_last_step.py::test_a_row_that_somebody_changes_meanwhile": TOGETHER,
    "tests/worker/test_last_step.py::test_an_exception_before_anything_is_sent": TOGETHER,
    "tests/worker/test_last_step.py::test_one_round_trip": TOGETHER,
    "tests/worker/test_last_step.py::test_sessions_after_a_failure[None]": TOGETHER,
    "tests/worker/test_last_step.py::test_sessions_after_a_failure[rollback]": TOGETHER,
    "tests/worker/test_left_sessions.py": OWN_SESSIONS,
    "tests/worker/test_listener.py": LISTENS,
    "tests/worker/test_pick_up.py": LISTENS,
    "tests/worker/test_schema_changes.py::test_a_column_is_added_while_statements_are_prepared": PREPARES,
    "tests/worker/test_stream.py": LISTENS,
    "tests/worker/test_timezones.py": OLD_SESSIONS,
    "tests/worker/test_transactional.py::test_a_connection_that_broke_while_idle_costs_no_attempt": OWN_SESSIONS,
    "tests/worker/test_transactional.py::test_a_connection_that_breaks_right_after_its_use_costs_no_attempt": (
        OWN_SESSIONS
    ),
    "tests/worker/test_transactional.py::test_sessions_from_a_read_only_period_are_not_used_again": OWN_SESSIONS,
    "tests/worker/test_transactional.py::test_what_a_transactional_job_costs": TOGETHER,
    "tests/worker/test_wakeups.py": LISTENS,
    "tests/worker/test_writer.py::test_it_keeps_no_connection_while_there_is_nothing_to_write": KEPT_SESSIONS,
}

"""array_literal: the text of an array, whatever is in it."""

import pytest
import sqlalchemy as sa

from sqlane_sa.statement import array_literal

TEXTS = ['"', "\\", '\\"', "{}", "NULL", "null", ",", '","', " ", "", "é", "\U0001f600", "\n", "a" * 9]


@pytest.mark.parametrize(
    "items", [[], [""], ["", ""], [None], ["NULL", None], TEXTS, [*TEXTS, None], *([text] for text in TEXTS)]
)
def test_texts_come_back(shared_conn: sa.Connection, items: list[str | None]) -> None:
    given = sa.bindparam("items", array_literal(items), sa.Text())
    assert shared_conn.scalar(sa.select(sa.cast(given, sa.ARRAY(sa.Text)))) == items


def test_integers_and_nothing() -> None:
    assert array_literal([1, None, -2]) == "{1,NULL,-2}"
    assert array_literal(iter(())) == "{}"


@pytest.mark.parametrize("items", [["a\0b"], ["a", "\0"], ["\0"]])
def test_a_nul_is_no_comma(items: list[str]) -> None:
    """PostgreSQL refuses it, rather than to take one text for two."""
    assert array_literal(items).count("\0") == 1
    assert array_literal(items).count(",") == len(items) - 1

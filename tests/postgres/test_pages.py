"""The page about Postgres, executed with a real server in the place of the page's."""

import pytest
from pages_with import PageWith

PAGE = "how-to/postgres.md"
SHOWN = "postgresql://agents@db.example.org/agents"


def test_the_page_about_postgres_is_what_happens(postgres):
    """Each block of the page is executed on a server, and prints what the page shows."""
    differences = PageWith(PAGE, {SHOWN: postgres}).execute()
    assert not differences, "\n\n".join(differences)


@pytest.mark.parametrize("page", [PAGE, "how-to/cluster.md"])
def test_the_defaults_of_the_pages_are_those_of_the_store(page):
    """The pages name the defaults that the store has."""
    from stepwise.stores._postgres_connections import PostgresOptions

    text = PageWith(page, {}).text
    for name, value in PostgresOptions._field_defaults.items():
        if name == "schema" or (page != PAGE and name not in text):
            continue
        said = (f"`{name}` | {value:g}", f"`{name}={value:g}`", f"`{name}` ({value:g})")
        said += (f"**`{name}`** ({value:g})",)
        assert any(each in text for each in said), name

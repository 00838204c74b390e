"""Builds a reading list: books for each wish, from the catalogue of the library."""

from outside import chat, get

from stepwise import step, workflow

WISHES = [
    "poems",
    "maps",
    "French cooking since 2020",
    "gardening",
    "something on bees",
    "chess",
    "tides",
    "trains",
]


class Catalog:
    """The library's interface for searches."""

    def __init__(self, branch):
        self.branch = branch
        self.filters = {"branch": branch}

    def where(self, **filters):
        for name, value in filters.items():
            if value is not None:
                self.filters[name] = value
        return self

    def query(self, words):
        pairs = [f"{name}={value}" for name, value in sorted(self.filters.items())]
        return "&".join([f"q={words}", *pairs])


@step(retries=2)
def understand(wish):
    return chat([{"role": "user", "content": f"Words, language and year of: {wish}"}])


@step
def fetch(branch, query):
    return get(f"/{branch}/books?{query}")


@workflow
def reading_list(branch, wishes):
    catalog = Catalog(branch)
    found = {}
    for wish in wishes:
        asked = understand(wish)
        catalog.where(language=asked.get("language"), since=asked.get("since"))
        books = fetch(branch, catalog.query(asked["words"]))
        found[wish] = [book["title"] for book in books]
    return found


if __name__ == "__main__":
    print(reading_list("north", WISHES))

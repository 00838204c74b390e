"""Sends a welcome to the new people in the customer database."""

from outside import chat, get

from stepwise import step, tool, workflow


@step(retries=2)
def fetch(page):
    return get(f"/people?page={page}")


@step(retries=2)
def write_welcome(name, language):
    return chat([{"role": "user", "content": f"A welcome in {language} to {name}"}])


@tool(side_effect=True)
def send(address, text):
    return f"sent to {address}"


def address_of(person):
    consent = person.get("consent", {})
    if not consent.get("mail"):
        return None
    return person["email"].strip().lower()


@workflow
def welcome(pages):
    sent = []
    for page in range(1, pages + 1):
        people = fetch(page)
        for person in people:
            name = person["name"]
            text = write_welcome(name, person.get("language", "English"))
            address = address_of(person)
            if address is not None:
                sent.append(send(address, text))
    return sent


if __name__ == "__main__":
    print(welcome(9))

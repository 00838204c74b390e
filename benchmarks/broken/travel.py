"""Books a room for each stop of a journey: a hotel, else the hostel."""

import logging
import sys

from outside import get

from stepwise import step, tool, workflow

CITIES = ["Bern", "Linz", "Prag", "Brno", "Graz", "Wien", "Zell", "Murau", "Lienz", "Brixen"]
log = logging.getLogger("travel")


@step
def quote(city):
    return get(f"/hotels/{city}")


@step
def hostel(city):
    return get(f"/hostels/{city}")


@tool(side_effect=True)
def book(city, house, price):
    log.info("booked %s", house)
    return f"{city}: {house}, {price} EUR"


@workflow
def travel(cities, most):
    booked = []
    for city in cities:
        offer, failed = None, False
        for attempt in range(3):
            try:
                offer = quote(city)
                break
            except ConnectionError as error:
                log.info("attempt %d in %s: %s", attempt + 1, city, error)
                failed = True
        if failed or offer["price"] > most:
            offer = hostel(city)
        house, price = offer["house"], offer["price"]
        booked.append(book(city, house, price))
    return booked


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    print(travel(CITIES, 140))

"""Pays back what customers ask for, if the model agrees."""

import logging
import sys

from outside import chat, get

from stepwise import step, tool, workflow

log = logging.getLogger("refunds")
RULES = "You read complaints of customers of a shop. Answer with one word: refund or keep."


@step
def read_ticket(number):
    return get(f"/tickets/{number}")


@step
def find_order(number):
    return get(f"/orders/{number}")


@step(retries=2)
def decide(text):
    return chat([{"role": "system", "content": RULES}, {"role": "user", "content": text}])


@tool(side_effect=True)
def pay_back(customer, cents):
    log.info("paid %.2f to %s", cents / 100, customer)
    return f"{customer}: {cents / 100:.2f}"


@workflow
def refunds(numbers):
    paid = []
    for number in numbers:
        ticket = read_ticket(number)
        answer = decide(ticket["text"])
        if answer != "refund":
            log.info("ticket %s: %s", number, answer)
            continue
        order = find_order(ticket["order"])
        share = 0.5 if ticket.get("partial") else 1
        amount = round(order.get("total", 0) * share)
        paid.append(pay_back(ticket["customer"], amount))
    return paid


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    print(refunds([f"T-{number}" for number in range(1, 31)]))

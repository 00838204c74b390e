"""Compares the offers for a job, and answers the best and the second."""

from outside import chat, get

from stepwise import step, tool, workflow

JUDGE = "Rate the offer from 0 to 100. Answer with the number alone."


@step
def load_offers(job):
    return get(f"/jobs/{job}/offers")


@step(retries=2)
def rate(company, text):
    reply = chat([{"role": "system", "content": JUDGE}, {"role": "user", "content": text}])
    return int(reply)


@tool(side_effect=True)
def accept(company):
    return f"accepted {company}"


@tool(side_effect=True)
def keep_waiting(company):
    return f"{company} waits"


@workflow
def tender(job):
    offers = load_offers(job)
    offers.sort(key=lambda offer: offer["price"])
    scores = {}
    for offer in offers:
        company = offer["company"]
        score = rate(company, offer["text"])
        if score >= 50:
            scores[company] = score
    best, second, *others = scores
    answers = [accept(best), keep_waiting(second)]
    return {"answers": answers, "declined": others}


if __name__ == "__main__":
    print(tender("roof"))

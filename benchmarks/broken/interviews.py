"""Assesses the answers of candidates, one after the other."""

from outside import chat, get

from stepwise import step, workflow

PANEL = "You are on a hiring panel. Say in one sentence what this candidate is good at."


@step
def fetch_answers(name):
    return get(f"/interviews/{name}")


@step(retries=2)
def assess(name, text):
    return chat(
        [
            {"role": "system", "content": PANEL},
            {"role": "user", "content": f"Candidate: {name}\n{text}"},
        ]
    )


@step
def rank(verdicts):
    lines = [f"{name}: {verdict}" for name, verdict in verdicts.items()]
    return chat([{"role": "user", "content": "Who is the best?\n" + "\n".join(lines)}])


def transcript(answers, lines=[]):
    for question, answer in answers:
        lines.append(f"Q: {question}")
        lines.append(f"A: {answer}")
    return "\n".join(lines)


@workflow
def interviews(candidates):
    verdicts = {}
    for name in candidates:
        answers = fetch_answers(name)
        text = transcript(answers)
        verdicts[name] = assess(name, text)
    best = rank(verdicts)
    return {"best": best, "verdicts": verdicts}


if __name__ == "__main__":
    print(interviews(["Ida", "Noor", "Lea", "Tom", "Max", "Eva", "Kim", "Joe"]))

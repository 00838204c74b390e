"""A tutor that looks each question up in the course book before it answers."""

from outside import chat, get

from stepwise import step, workflow

RULES = "You are a patient tutor. Answer with the page at hand, in one sentence."


@step
def next_question(session, number):
    return get(f"/sessions/{session}/{number}")


@step
def look_up(words):
    return get("/book?" + words)


@step(retries=2)
def answer(messages):
    return chat(messages)


def keywords(messages):
    question = next(each for each in messages if each["role"] == "user")
    words = [word.strip("?,.").lower() for word in question["content"].split()]
    return "+".join(sorted(word for word in words if len(word) > 5))


@workflow
def lesson(session, count):
    messages = [{"role": "system", "content": RULES}]
    answers = []
    for number in range(count):
        question = next_question(session, number)
        messages.append({"role": "user", "content": question})
        words = keywords(messages)
        page = look_up(words)
        messages.append({"role": "tool", "content": page})
        reply = answer(messages)
        messages.append({"role": "assistant", "content": reply})
        answers.append(reply)
    return answers


if __name__ == "__main__":
    for line in lesson("s-12", 8):
        print(line)

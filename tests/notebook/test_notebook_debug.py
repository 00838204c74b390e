"""``%stepwise debug`` in a real kernel."""

DEFINED = """
    import builtins
    from stepwise import step, tool, workflow

    @step
    def price(text):
        return int(text)

    @tool(side_effect=True)
    def send(text):
        done(text)
        return "sent"

    @workflow(run_id="order")
    def order():
        text = "seven"
        send("first")
        cents = price(text)
        return cents
"""


def prompted(*lines):
    """A cell that opens the run, and gives these commands at the prompt."""
    return f"""
        said = iter({lines!r})
        builtins.input = lambda prompt="": next(said)
        value = get_ipython().run_line_magic("stepwise", "debug order")
        print("value", value, stepwise.get_run("order").status)
    """


def test_a_run_of_the_notebook(notebook):
    """The prompt opens in the kernel, leaves the run as it was, or goes on with it for real."""
    kernel = notebook.start(DEFINED)
    kernel.fail("order()")
    shown = kernel.run(prompted("p text", "send('again')", "quit")).text
    assert "'seven'" in shown
    assert "OutsideRunError" in shown
    assert "value None failed" in shown
    assert "value 7 completed" in kernel.run(prompted("text = '7'", "continue")).text
    assert "value" in kernel.run("print('value', order())").text

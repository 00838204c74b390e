"""LangGraph, a graph with a node of tools: ``use_langgraph.py VARIANT``."""

import asyncio
import sys

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from office import MODEL, TASK, book_room, look_up, send_email

import stepwise

stepwise.instrument()
tools = [look_up, book_room, send_email]
model = ChatOpenAI(model=MODEL).bind_tools(tools)


def ask(state: MessagesState):
    return {"messages": [model.invoke(state["messages"])]}


async def ask_async(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"])]}


def build(node):
    graph = StateGraph(MessagesState)
    graph.add_node("ask", node)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    return graph.compile()


@stepwise.workflow
def invoke(task):
    state = build(ask).invoke({"messages": [("user", task)]})
    return state["messages"][-1].text


@stepwise.workflow
async def ainvoke(task):
    state = await build(ask_async).ainvoke({"messages": [("user", task)]})
    return state["messages"][-1].text


answer = globals()[sys.argv[1]](TASK)
print(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)

"""For users of agent frameworks: their own classes, on the journal of a run.

``stepwise.instrument`` records the model calls of any framework, below the SDKs that it uses.
Modules, each importing only those before it::

    _supported             the libraries, with the oldest supported version of each
    _model_protocols       the identity of a request to a model, and what an answer says
    _recorded_responses    requests and responses of httpx as recorded values, and back
    instrument             the clients whose requests are recorded steps, and how these are made
    _model_calls           the model calls of a run: for a file, and where a prompt has moved
    openai_agents          conversations of the OpenAI Agents SDK
    pydantic_ai            for users of pydantic-ai: an engine for durable execution
    _langgraph_threads     the checkpoints of threads, and their logs in a store
    langgraph              for users of LangGraph: a checkpointer, and graphs in workflows
    _opentelemetry_spans   metrics, and runs, steps and retries as spans
    opentelemetry          for users of OpenTelemetry
    prometheus             the metrics of a process and its stores, and whether it is ready
    ray                    for users of Ray: runs of workflows on a cluster, and ``up --ray``
    hive                   for users of hive: an executor, and a checkpoint store
"""

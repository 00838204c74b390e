"""For users of agent frameworks: their own classes, on the journal of a run.

``stepwise.instrument`` records the model calls of any framework, below the SDKs that it uses.
Modules, each importing only those before it::

    _supported           the libraries, with the oldest supported version of each
    _request_masks       secrets in URLs and bodies, masked
    _model_requests      the identity of a request to a model, and which answers are outcomes
    _model_answers       what an answer says of its model, its tokens and its price
    _recorded_responses  a response of httpx as a recorded value, and back
    _request_bodies      bodies, each stored as what it adds to earlier ones
    _requests            a request that is a recorded step
    instrument           the clients whose requests are
    _model_calls         the model calls of a run, for a file
    openai_agents        conversations of the OpenAI Agents SDK
    pydantic_ai          for users of pydantic-ai: an engine for durable execution
    _langgraph_threads   the checkpoints of one thread, as records of a log
    _langgraph_store     the logs of all threads in a store
    _langgraph_runs      graphs that a workflow invokes
    langgraph            for users of LangGraph: a checkpointer
    _opentelemetry_metrics  counts of runs, steps and tokens as metrics
    _opentelemetry_spans    runs, steps and retries as spans
    opentelemetry        for users of OpenTelemetry
    _ray_cluster         the cluster of Ray, and the task that executes a run
    _ray_executor        bodies of steps as tasks of a Ray cluster
    _ray_engine          runs that ``stepwise up --ray`` continues
    ray                  for users of Ray: workflows that a cluster executes
    _hive_store          the checkpoint store of hive
    _hive_execution      the graphs of hive
    hive                 for users of hive
"""

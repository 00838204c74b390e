"""Frameworks report nothing home and fetch nothing, neither here nor in the programs."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
SILENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1",
}
os.environ.update(SILENT)  # before any of them is imported
sys.path.insert(0, str(HERE))

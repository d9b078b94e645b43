"""Rollout on SGLang: its scheduler serves OpenVLA-OFT in a child process with its own interpreter.

`backend`, `engine`, `pipe_engine` and `http_engine` run in the trainer's interpreter; `engine_host` and `http_host` in
SGLang's. `plugin` runs in every process that SGLang starts and registers `model` and `media`.
"""

"""Rollout on SGLang: its scheduler serves OpenVLA-OFT in a child process with its own interpreter.

`backend`, `engine` and `pipe_engine` run in the trainer's interpreter; `engine_host` in SGLang's. `plugin` runs in
every process that SGLang starts and registers `model` and `media`.
"""

"""Rollout on SGLang: OpenVLA-OFT served by its scheduler, in an interpreter of its own.

Two sides. In the trainer's interpreter: `backend`, `engine`, `pipe_engine`, `http_engine`. In SGLang's: `engine_host`
and `http_host`, and in every process that SGLang starts `plugin`, which registers `model` and `media`.
"""

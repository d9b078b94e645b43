"""Checks between keys of workers and machines: environments, rollouts, clusters, servers, recordings."""

from __future__ import annotations

import re

from rlrun.config.faults import Faults, no_effect, not_multiple, wrong_names
from rlrun.config.registry import ALGORITHMS, POLICIES
from rlrun.config.schema import (
    VLA_EVAL_PATH,
    ClusterKind,
    EvaluationConfig,
    RolloutBackendKind,
    RunConfig,
    SglangConfig,
    WeightTransport,
)
from rlrun.config.simulator_spec import simulator_spec
from rlrun.system.errors import RunError

MOST_OF_OPENPI = 2  # pictures that openpi's protocol has names for
EDGES = ("observation", "actions", "trajectory", "weights")  # files of rlrun/data/recording.py


def envs_divide_among_workers(config: RunConfig) -> Faults:
    """All env workers have the same number of envs."""
    yield from not_multiple("env.num_envs", config.env.num_envs, "env.num_workers", config.env.num_workers)


def actions_arrive_within_a_chunk(config: RunConfig) -> Faults:
    """While a policy computes, the robot has actions of the chunk before."""
    delay = config.env.action_delay
    if delay >= config.policy.num_action_chunks:
        yield RunError(
            "Actions arrive later than a chunk lasts, and the robot would have none meanwhile.",
            key="env.action_delay",
            value=delay,
            cause=f"a chunk has {config.policy.num_action_chunks} control steps (policy.num_action_chunks)",
            remedy=f"Take at most {config.policy.num_action_chunks - 1}, or longer chunks.",
        )


def chunks_can_be_continued(config: RunConfig) -> Faults:
    """Real-time chunking guides the flow of a policy that is here, by all actions that are executed meanwhile."""
    settings = config.evaluation.real_time_chunking
    if not settings.enable:
        return
    key = "evaluation.real_time_chunking."
    if config.evaluation.server is not None:
        yield RunError(
            "A policy server draws its chunks itself, and takes no coming actions.",
            key=key + "enable",
            value=True,
            cause=f"evaluation.server is {config.evaluation.server}",
            remedy=f"Leave out {key}enable, or evaluate a checkpoint (evaluation.checkpoint).",
        )
    elif not POLICIES.get(config.policy.kind).continues_chunks:
        yield RunError(
            "Real-time chunking guides the steps of a flow, which this policy does not have.",
            key=key + "enable",
            value=True,
            cause=f"policy.kind is {config.policy.kind}",
            remedy=f"Leave it out, or take one of {', '.join(_continuing_kinds())}.",
        )
    if settings.execution_horizon < config.env.action_delay:
        yield RunError(
            "The new chunk is guided by fewer actions than are executed meanwhile.",
            key=key + "execution_horizon",
            value=settings.execution_horizon,
            cause=f"env.action_delay is {config.env.action_delay}",
            remedy=f"Take at least {config.env.action_delay}.",
        )


def _continuing_kinds() -> list[str]:
    return [name for name in POLICIES.names() if POLICIES.get(name).continues_chunks]


def rollout_workers_have_work(config: RunConfig) -> Faults:
    """Each env worker uses one rollout worker, so rollout workers beyond the number of env workers would be idle."""
    if config.rollout.num_workers > config.env.num_workers:
        yield RunError(
            f"{config.rollout.num_workers} rollout workers for {config.env.num_workers} env workers: some would idle.",
            key="rollout.num_workers",
            value=config.rollout.num_workers,
            cause="Each env worker is served by one rollout worker.",
            remedy=f"Take at most env.num_workers={config.env.num_workers}, or more env workers.",
        )


def interpreter_has_a_process(config: RunConfig) -> Faults:
    """A simulator without its own process uses the interpreter of its worker."""
    named = [name for name, group in config.placement.nodes.items() if group and group.get("python")]
    if config.env.own_process is False and (named or simulator_spec(config.env).process.needs_own_process):
        yield RunError(
            "The simulator needs a process of its own.",
            key="env.own_process",
            value=False,
            cause=f"placement.nodes.{named[0]}.python names its interpreter."
            if named
            else f"{config.env.simulator} takes over the process that it runs in.",
            remedy="Leave out env.own_process.",
        )


def backend_serves_the_policy(config: RunConfig) -> Faults:
    """The rollout backend can serve the policy."""
    backend = config.rollout.backend.value
    served_by = POLICIES.get(config.policy.kind).backends
    if backend not in served_by:
        yield RunError(
            f"The rollout backend {backend} cannot serve policy.kind={config.policy.kind}.",
            key="rollout.backend",
            value=backend,
            cause=f"The policy names {', '.join(served_by)}.",
            remedy=f"Set rollout.backend={served_by[0]}.",
        )


def local_cluster_has_one_rank(config: RunConfig) -> Faults:
    """One process can have only one FSDP rank."""
    if config.cluster.kind is ClusterKind.local and config.actor.num_workers != 1:
        yield RunError(
            "The whole system in one process has room for one actor rank.",
            key="actor.num_workers",
            value=config.actor.num_workers,
            cause="cluster.kind=local runs every worker in this process; ranks of a collective each need their own.",
            remedy="Leave it out, or take cluster.kind=ray.",
        )


def transport_needs_processes(config: RunConfig) -> Faults:
    """Collectives and device memory can send weights only between processes."""
    transport = config.weight_sync.transport
    if config.cluster.kind is ClusterKind.local and transport not in (None, WeightTransport.object_store):
        yield RunError(
            "One process cannot send itself weights by a collective, or into memory of its accelerator.",
            key="weight_sync.transport",
            value=transport.value,
            cause="cluster.kind=local runs actor and rollout in this process.",
            remedy="Leave weight_sync.transport out, or take cluster.kind=ray.",
        )


def local_cluster_has_no_address(config: RunConfig) -> Faults:
    """Without Ray, an address would be ignored."""
    if config.cluster.kind is ClusterKind.local and config.cluster.address is not None:
        yield no_effect(
            "cluster.address",
            config.cluster.address,
            "cluster.kind=local starts no Ray",
            "Drop it, or cluster.kind=ray.",
        )


def workers_know_their_head(config: RunConfig) -> Faults:
    """A node that is not the head needs the address of a head to join."""
    if config.node.is_head is False and config.cluster.address is None:
        yield RunError(
            "A node that is not the head needs the head's address.",
            key="node.is_head",
            value=False,
            cause="cluster.address is not set.",
            remedy="Write address=HOST:PORT, as train-0:6379.",
        )


def profiled_steps_exist(config: RunConfig) -> Faults:
    """The steps to profile are steps of the run."""
    late = [step for step in config.logging.profile_steps if step >= config.num_steps]
    if late:
        yield RunError(
            f"The run has no step {late[0]} to profile.",
            key="logging.profile_steps",
            value=config.logging.profile_steps,
            cause=f"Steps count from 0 and num_steps is {config.num_steps}.",
            remedy="Take smaller ones, or more steps.",
        )


def recorded_edges_exist(config: RunConfig) -> Faults:
    """The messages to record are known by name."""
    yield from wrong_names("record.edges", config.record.edges, EDGES)


def recorded_steps_exist(config: RunConfig) -> Faults:
    """The steps to record are steps of the run."""
    if config.record.num_steps and config.record.first_step >= config.num_steps:
        yield RunError(
            f"The run has no step {config.record.first_step} to record.",
            key="record.first_step",
            value=config.record.first_step,
            cause=f"Steps count from 0 and num_steps is {config.num_steps}.",
            remedy="Take a smaller one, or more steps.",
        )


def replays_are_not_recorded(config: RunConfig) -> Faults:
    """A replay cannot be recorded, since it has trajectories and weights only."""
    if config.replay.path is not None and config.record.num_steps:
        because = "a replay is not recorded"
        yield no_effect("record.num_steps", config.record.num_steps, because, "Take 0, or leave out replay.")


def replays_need_no_demonstrations(config: RunConfig) -> Faults:
    """A replay has no simulators, with which demonstrations are recorded and compared."""
    algorithm = config.algorithm
    if config.replay.path is None:
        return
    is_imitated = algorithm.imitation_coef > 0
    use = "imitated beside (algorithm.imitation_coef)" if is_imitated else f"part of what {algorithm.name} learns"
    if is_imitated or ALGORITHMS.get(algorithm.name).needs_demonstrations:
        yield RunError(
            "A replay cannot learn from demonstrations.",
            key="replay.path",
            value=config.replay.path,
            cause=f"They are {use}; they come from simulators, or are compared with them, and a replay has none.",
            remedy="Resume the run instead, with resume=RUN.",
        )


def sglang_settings_have_an_engine(config: RunConfig) -> Faults:
    """Settings of SGLang have an effect only with its backend."""
    settings = config.rollout.sglang
    default = SglangConfig()
    if config.rollout.backend is RolloutBackendKind.sglang:
        return
    for name in ("python", "attention_backend", "mem_fraction_static", "server_args"):
        if getattr(settings, name) != getattr(default, name):
            because = "rollout.backend is hf"
            yield no_effect(f"rollout.sglang.{name}", getattr(settings, name), because, "Add rollout=sglang.")


def servers_serve_robots(config: RunConfig) -> Faults:
    """A policy server replaces a checkpoint; openpi's protocol has names for two cameras."""
    server = config.evaluation.server
    timeout_s = config.evaluation.server_timeout_s
    if server is None:
        if timeout_s != EvaluationConfig().server_timeout_s:
            yield no_effect("evaluation.server_timeout_s", timeout_s, "evaluation.server is null", "Drop it.")
        return
    if not re.fullmatch(r"wss?://[^/\s]+(/\S*)?", server):
        yield RunError(
            f"'{server}' is no address of a policy server.",
            key="evaluation.server",
            value=server,
            remedy=f"Write ws://host:port, or ws://host:port{VLA_EVAL_PATH} for a model server of vla-eval.",
        )
    if config.evaluation.checkpoint is not None:
        yield no_effect(
            "evaluation.checkpoint", config.evaluation.checkpoint, "evaluation.server brings the policy", "Drop one."
        )
    world = simulator_spec(config.env).world
    cameras = list(world.planned_spaces(config.env).cameras)
    is_of_openpi = not (world.is_r1pro or config.evaluation.is_server_of_vla_eval)
    if is_of_openpi and len(cameras) > MOST_OF_OPENPI:
        yield RunError(
            f"A policy server of openpi's protocol is shown two pictures, and there are {len(cameras)} cameras.",
            key=f"env.{config.env.simulator}.cameras",
            value=cameras,
            remedy=f"Name two cameras, or write ws://host:port{VLA_EVAL_PATH} for a model server of vla-eval.",
        )


def origins_are_origins(config: RunConfig) -> Faults:
    """The origins of web pages are written as browsers send them."""
    for origin in config.serve.allowed_origins:
        if not re.fullmatch(r"https?://[^/\s]+", origin):
            yield RunError(
                f"'{origin}' is no origin of a web page.",
                key="serve.allowed_origins",
                value=config.serve.allowed_origins,
                remedy="Write scheme, host and, if it is not 80 or 443, port: http://robot.example:3000.",
            )

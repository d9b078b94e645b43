"""Families of published policies, and what their evaluations on LIBERO do, by the files of their repositories.

docs/reproduce.md has the table, and the versions that were read. Success rates are those that the repositories print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OF_FAMILY = "family"  # in place of a published number: that of the family's repository
SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
TURNED = "picture: turned"
GRIPPER = "gripper of actions"
CROP = "picture: centre crop of the policy"
CHUNK = "control steps of a chunk"
SETTLE = "settle steps"
IDLE = "gripper while settling"
STARTS = "starts"
STATE = "state"
BOUNDS = "statistics: bounds"
TEMPERATURE = "temperature"
FLOW_STEPS = "flow steps"
SAMPLING = "sampling of the flow"
ODE = "nft"  # of a drawn first noise, without further noise
FORMAT = "number format"
CAMERAS = "cameras"
SENTENCE = "sentence"
SIZE = "picture: size"
STOP = "stop token after the actions"
STATE_IN_PROMPT = "state in the prompt"
LIMIT = "control steps of an episode"  # of each suite: Family.limits
RATE = "control steps a second"
BOTH_CAMERAS = "[agentview,robot0_eye_in_hand]"
PUBLISHED_STARTS = "'0:50'"
SETTLED = {SETTLE: "10", IDLE: "-1.0", STARTS: PUBLISHED_STARTS}


@dataclass(frozen=True)
class Known:
    """The value of a convention in a published evaluation, as in YAML, and the file that says so."""

    value: str
    source: str


@dataclass(frozen=True)
class Family:
    """The published evaluation of one family of policies."""

    name: str
    kinds: tuple[str, ...] = ()  # types or kinds of its folders
    values: Mapping[str, Known] = field(default_factory=dict)  # by the name of the convention
    limits: Mapping[str, int] = field(default_factory=dict)  # control steps of an episode, by suite
    published: Mapping[str, float] = field(default_factory=dict)  # success rates by suite, 0..1
    repository: str = ""


def _by_suite(*values: float) -> dict[str, float]:
    """Return the numbers of spatial, object, goal and 10 by suite."""
    return dict(zip(SUITES, values, strict=True))


def _limits(*values: int, ninety: int = 400) -> dict[str, int]:
    return {**dict(zip(SUITES, values, strict=True)), "libero_90": ninety}


def _known(source: str, values: Mapping[str, str]) -> dict[str, Known]:
    """Return values by the names of their conventions."""
    return {name: Known(value, source) for name, value in values.items()}


OPENVLA_LIMITS = _limits(220, 280, 300, 520)
OPENVLA = (
    _known("libero_utils.py", {TURNED: "rotated", IDLE: "-1.0", RATE: "20"})
    | _known("run_libero_eval.py", {SETTLE: "10", STARTS: PUBLISHED_STARTS, SIZE: "224", GRIPPER: "true"})
    | _known("openvla_utils.py", {CROP: "true", SENTENCE: "published", FORMAT: "bf16", STATE: "axis_angle"})
    | _known("modeling_prismatic.py", {BOUNDS: "q99", TEMPERATURE: "0.0", STOP: "true"})
)
LEROBOT = (  # before 0.6 the pictures have the size of libero.py, whatever configs.py says
    _known("libero.py", {**SETTLED, CAMERAS: BOTH_CAMERAS, GRIPPER: "false", SIZE: "256"})
    | _known("env_processor.py", {TURNED: "rotated", STATE: "axis_angle", SENTENCE: "published"})
    | _known("configs.py", {RATE: "20"})
)
LEROBOT_LIMITS = _limits(280, 280, 300, 520)
OWN = Family("rlrun", values=_known("", {STARTS: PUBLISHED_STARTS}))  # a policy without a record
FAMILIES: tuple[Family, ...] = (
    Family(
        "SimpleVLA-RL",
        ("openvla_oft",),
        OPENVLA | _known("rob_rollout.py", {CAMERAS: "[agentview]", CHUNK: "8"}),
        _limits(512, 512, 512, 512, ninety=512),
        repository="PRIME-RL/SimpleVLA-RL",
    ),
    Family(
        "openvla-oft",
        (),
        OPENVLA | _known("run_libero_eval.py", {CAMERAS: BOTH_CAMERAS, CHUNK: "8"}),
        OPENVLA_LIMITS,
        repository="moojink/openvla-oft",
    ),
    Family(
        "RLinf",
        (),
        OPENVLA
        | _known("openvla_oft.yaml", {CAMERAS: "[agentview]", CHUNK: "8"})
        | _known("libero_env.py", {SETTLE: "15", IDLE: "0.0", SIZE: "256", STARTS: PUBLISHED_STARTS})
        | _known("action_utils.py", {GRIPPER: "true"})
        | _known("openvla_oft_action_model.py", {CROP: "false", STOP: "false", SENTENCE: "published", BOUNDS: "q99"})
        | _known("libero_10_openvlaoft_eval.yaml", {TEMPERATURE: "1.6"}),
        _limits(512, 512, 512, 520, ninety=512),  # of the configurations of its evaluations; libero_env's are shorter
        _by_suite(0.9869, 0.9960, 0.9809, 0.9345),
        "RLinf/RLinf",
    ),
    Family(
        "LeRobot SmolVLA",
        ("smolvla",),
        LEROBOT
        | _known("configuration_smolvla.py", {CHUNK: "50", FLOW_STEPS: "10"})
        | _known("modeling_smolvla.py", {SAMPLING: ODE}),
        LEROBOT_LIMITS,
        repository="huggingface/lerobot",
    ),
    Family(
        "LeRobot pi0",
        ("pi0",),
        LEROBOT
        | _known("configuration_pi0.py", {CHUNK: "10", FLOW_STEPS: "10"})
        | _known("modeling_pi0.py", {SAMPLING: ODE}),
        LEROBOT_LIMITS,
        repository="huggingface/lerobot",
    ),
    Family(
        "LeRobot pi0.5",
        ("pi05",),
        LEROBOT
        | _known("pi05.mdx", {CHUNK: "10"})
        | _known("configuration_pi05.py", {FLOW_STEPS: "10"})
        | _known("processor_pi05.py", {STATE_IN_PROMPT: "real"})
        | _known("modeling_pi05.py", {SAMPLING: ODE}),
        LEROBOT_LIMITS,
        _by_suite(0.97, 0.99, 0.98, 0.96),
        "huggingface/lerobot",
    ),
    Family(
        "LeRobot GR00T N1.7",
        ("gr00t",),
        _known("libero.py", {**SETTLED, CAMERAS: BOTH_CAMERAS, GRIPPER: "false"})  # the policy returns -1 (open) or 1
        | _known("env_processor.py", {TURNED: "rotated", STATE: "axis_angle"})
        | _known("configuration_groot.py", {CHUNK: "8", FLOW_STEPS: "4"})
        | _known("flow_matching_action_head.py", {SAMPLING: ODE})
        | _known("configs.py", {RATE: "20"}),  # its pictures of 360 pixels come to the folder's size by its processor
        LEROBOT_LIMITS,
        _by_suite(0.95, 1.00, 0.98, 0.93),
        "huggingface/lerobot",
    ),
    Family(
        "openpi pi0",
        ("openpi pi0",),
        _known(
            "main.py",
            {TURNED: "rotated", **SETTLED, CHUNK: "5", SIZE: "224"},
        )
        | _known(
            "libero_policy.py", {CAMERAS: BOTH_CAMERAS, STATE: "axis_angle", GRIPPER: "false", SENTENCE: "published"}
        )
        | _known("pi0.py", {FLOW_STEPS: "10", SAMPLING: ODE})
        | _known("pi0_config.py", {FORMAT: "bf16"}),
        OPENVLA_LIMITS,
        _by_suite(0.968, 0.988, 0.958, 0.852),
        "Physical-Intelligence/openpi",
    ),
    Family(
        "openpi pi0.5",
        ("openpi pi05",),
        _known(
            "main.py",
            {TURNED: "rotated", **SETTLED, CHUNK: "5", SIZE: "224"},
        )
        | _known(
            "libero_policy.py", {CAMERAS: BOTH_CAMERAS, STATE: "axis_angle", GRIPPER: "false", SENTENCE: "published"}
        )
        | _known("pi0.py", {FLOW_STEPS: "10", SAMPLING: ODE, STATE_IN_PROMPT: "none"})
        | _known("pi0_config.py", {FORMAT: "bf16"}),
        OPENVLA_LIMITS,
        _by_suite(0.988, 0.982, 0.980, 0.924),
        "Physical-Intelligence/openpi",
    ),
    Family(
        "Isaac-GR00T N1.7",
        (),
        _known("libero_env.py", {TURNED: "rotated", SETTLE: "0", STARTS: "sampled", GRIPPER: "true", SIZE: "256"})
        | _known("README.md", {CHUNK: "8", CAMERAS: BOTH_CAMERAS}),
        _limits(720, 720, 720, 720, ninety=720),
        _by_suite(0.9765, 0.9845, 0.975, 0.9435),
        "NVIDIA/Isaac-GR00T",
    ),
    Family(
        "LIBERO",
        (),
        _known(
            "metric.py",
            {TURNED: "raw", SETTLE: "5", IDLE: "0.0", STARTS: PUBLISHED_STARTS, CHUNK: "1", GRIPPER: "false"},
        )
        | _known("default.yaml", {SIZE: "128", CAMERAS: BOTH_CAMERAS}),
        _limits(600, 600, 600, 600, ninety=600),
        repository="Lifelong-Robot-Learning/LIBERO",
    ),
    Family(
        "vla-eval",
        (),
        _known(
            "benchmark.py",
            {**SETTLED, SIZE: "256"},  # the state is as each server asks for it: quat_no_antipodal
        )
        | _known("predict.py", {CHUNK: "1"})  # whose servers keep the rest of a chunk
        | _known("utils.py", {TURNED: "rotated"}),
        OPENVLA_LIMITS,
        repository="allenai/vla-evaluation-harness",
    ),
)

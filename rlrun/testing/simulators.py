"""The promises of the VectorEnv interface, as checks that any simulator can be run through.

Each check yields sentences about what is broken; passing it does not prove the promise. `CHECKS` lists all checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.data.messages import ChunkResult, Frames
from rlrun.envs.vector_env import VectorEnv

NUM_ENVS, CHUNK, TIME_LIMIT = 3, 4, 10
ALL = np.arange(NUM_ENVS)
Faults = Iterator[str]


@dataclass
class EnvUnderTest:
    """A simulator under test. make: returns a new one of three rows; the time limit is ten control steps. env: one."""

    config: EnvConfig
    make: Callable[[], VectorEnv]
    env: VectorEnv

    def start(self, seed: int = 7) -> Frames:
        """Reset all rows with the same seed."""
        return self.env.reset(ALL, np.full(NUM_ENVS, seed))

    def random_actions(self, seed: int = 0, num_steps: int = CHUNK) -> np.ndarray:
        """Return float32 [B, C, A]: the same random actions near the middle of the range in every row."""
        env = self.env
        share = np.random.default_rng(seed).uniform(0.4, 0.6, (1, num_steps, env.num_actions))
        actions = env.action_low + share * (env.action_high - env.action_low)
        return np.repeat(actions, env.num_envs, axis=0).astype(np.float32)


def contract_config(config: EnvConfig) -> EnvConfig:
    """Return `config` with the time limit that the checks rely on."""
    return dataclasses.replace(config, max_control_steps=TIME_LIMIT)


def same(one: Frames, other: Frames) -> bool:
    """Return whether two sets of frames are equal, bit for bit."""
    return np.array_equal(one.images, other.images) and np.array_equal(one.proprio, other.proprio)


def _row(frames: Frames, row: int | np.integer) -> Frames:
    return frames.rows(np.array([row]))


def _of_shape(what: str, found: np.ndarray, shape: tuple[int, ...], kind: type) -> Faults:
    if found.shape != shape or found.dtype != kind:
        yield f"{what} are {found.dtype} {list(found.shape)}; promised are {np.dtype(kind)} {list(shape)}"


def _frame_faults(subject: EnvUnderTest, frames: Frames, num_rows: int) -> Faults:
    env, size = subject.env, subject.config.image_size
    yield from _of_shape("images", frames.images, (num_rows, env.num_images, size, size, 3), np.uint8)
    yield from _of_shape("proprioception", frames.proprio, (num_rows, env.num_proprio), np.float32)
    if not np.isfinite(frames.proprio).all():
        yield "proprioception holds NaN or infinity"
    if len(frames.instructions) != num_rows or not all(frames.instructions):
        yield f"{len(frames.instructions)} instructions for {num_rows} rows, or an empty one"


def spaces_are_described(subject: EnvUnderTest) -> Faults:
    """Check that limits, names and sizes fit together."""
    env = subject.env
    counts = {len(env.action_names), len(env.action_low), len(env.action_high), env.num_actions}
    if len(counts) > 1 or not env.num_actions:
        yield f"num_actions, action_names, action_low and action_high differ in length: {sorted(counts)}"
    if not (np.asarray(env.action_low) < np.asarray(env.action_high)).all():
        yield "action_low is not below action_high"
    if env.num_images + env.num_proprio == 0:
        yield "there is nothing to see: no images and no proprioception"
    if env.num_envs != NUM_ENVS:
        yield f"num_envs is {env.num_envs}, asked for were {NUM_ENVS}"


def shapes_and_types(subject: EnvUnderTest) -> Faults:
    """Check that frames and results have the promised shapes and types."""
    env = subject.env
    yield from _frame_faults(subject, env.reset(np.array([0, 2]), np.array([1, 2])), 2)
    env.reset(np.array([1]), np.array([3]))
    result = env.step_chunk(subject.random_actions())
    yield from _frame_faults(subject, result.frames, NUM_ENVS)
    yield from _of_shape("rewards", result.rewards, (NUM_ENVS, CHUNK), np.float32)
    yield from _of_shape("step_valid", result.step_valid, (NUM_ENVS, CHUNK), bool)
    for name in ("terminated", "truncated", "success", "infra_fault"):
        yield from _of_shape(name, getattr(result, name), (NUM_ENVS,), bool)
    yield from _of_shape("q_score", result.q_score, (NUM_ENVS,), np.float32)
    if not np.isfinite(result.rewards).all():
        yield "rewards hold NaN or infinity"
    if result.infra_fault.any():
        yield "a row has an infra fault after ordinary actions"


def pictures_show_something(subject: EnvUnderTest) -> Faults:
    """Check that no camera is black and that `render` returns a picture."""
    frames = subject.start()
    if subject.env.num_images and not (frames.images.std((2, 3, 4)) > 2).all():
        yield "a camera's picture is of one colour"
    picture = subject.env.render(0, 120, 160)
    yield from _of_shape("pictures of render()", picture, (120, 160, 3), np.uint8)


def a_seed_decides(subject: EnvUnderTest) -> Faults:
    """Check that the same seed and actions give the same frames and rewards in every row."""
    frames = subject.start()
    if not all(same(_row(frames, 0), _row(frames, i)) for i in ALL):
        yield "the same seed starts differently in another row"
    result = subject.env.step_chunk(subject.random_actions())
    if not all(same(_row(result.frames, 0), _row(result.frames, i)) for i in ALL):
        yield "the same seed and actions lead to other frames in another row"
    if not (result.rewards == result.rewards[:1]).all():
        yield "the same seed and actions give other rewards in another row"


def a_past_does_not_matter(subject: EnvUnderTest) -> Faults:
    """Check that a new environment and a used one give the same episode for the same seed."""
    results: list[ChunkResult] = []
    for past in range(2):
        other = EnvUnderTest(subject.config, subject.make, subject.make())
        for i in range(past):
            other.start(100 + i)
            other.env.step_chunk(other.random_actions(5))
        other.start()
        results.append(other.env.step_chunk(other.random_actions()))
        other.env.close()
    if not same(results[0].frames, results[1].frames) or not np.array_equal(results[0].rewards, results[1].rewards):
        yield "an environment with a past repeats the same seed differently: something survives reset()"


def seeds_differ(subject: EnvUnderTest) -> Faults:
    """Check that two seeds start two different episodes."""
    frames = subject.env.reset(np.array([0, 1]), np.array([1, 2]))
    if same(_row(frames, 0), _row(frames, 1)):
        yield "two seeds start the same episode: reset() does not use its seeds"


def a_reset_touches_its_rows(subject: EnvUnderTest) -> Faults:
    """Check that reset() of one row leaves the others as they are."""
    env = subject.env
    subject.start()
    env.step_chunk(subject.random_actions())
    expected = env.step_chunk(subject.random_actions(1))
    subject.start()
    env.step_chunk(subject.random_actions())
    env.reset(np.array([1]), np.array([55]))
    result = env.step_chunk(subject.random_actions(1))
    if not all(same(_row(result.frames, i), _row(expected.frames, i)) for i in (0, 2)):
        yield "reset() of one row changes the others"


def inactive_rows_stand_still(subject: EnvUnderTest) -> Faults:
    """Check that a row left out of a chunk is not stepped. If all rows move together, RuntimeError is allowed."""
    env, out = subject.env, np.array([True, False, True])
    subject.start()
    try:
        result = env.step_chunk(subject.random_actions(), active=out)
    except RuntimeError:
        return
    if result.step_valid[1].any() or result.rewards[1].any() or result.frames.images[1].any():
        yield "a row that was left out has steps, rewards or pictures"
    if result.frames.proprio[1].any() or result.terminated[1] or result.truncated[1] or result.infra_fault[1]:
        yield "a row that was left out has proprioception, or has ended"
    try:
        later = env.step_chunk(subject.random_actions(), active=~out)
    except RuntimeError:
        return
    if not same(_row(later.frames, 1), _row(result.frames, 0)):
        yield "a row that was left out has moved meanwhile"


def the_time_limit_truncates(subject: EnvUnderTest) -> Faults:
    """Check that an episode ends inside the chunk, at env.max_control_steps, truncated."""
    subject.start()
    results = [subject.env.step_chunk(subject.random_actions()) for _ in range(3)]
    last = results[-1]
    if results[0].truncated.any() or results[1].truncated.any():
        yield "an episode is truncated before env.max_control_steps"
    if not last.truncated.all() or last.terminated.any():
        yield "an episode is not truncated at env.max_control_steps"
        return
    if last.step_valid.tolist() != [[True, True, False, False]] * NUM_ENVS or last.rewards[:, 2:].any():
        yield "steps after the end of an episode are valid, or have rewards"
    if last.infos[0].get("episode_length") != TIME_LIMIT:
        yield f"infos have episode_length {last.infos[0].get('episode_length')} after {TIME_LIMIT} control steps"


def final_frames_are_shown(subject: EnvUnderTest) -> Faults:
    """Check that the frames of an ended row are those of its last step, not of a next episode."""
    actions = subject.random_actions(num_steps=TIME_LIMIT + 2)
    subject.start()
    crossing = subject.env.step_chunk(actions)
    subject.start()
    exact = subject.env.step_chunk(actions[:, :TIME_LIMIT])
    subject.start(8)
    other = subject.env.step_chunk(actions)  # an episode that had begun without a reset would not know this seed
    if not same(crossing.frames, exact.frames) or same(crossing.frames, other.frames):
        yield "the frames of an ended row are not those of its last step"


def a_chunk_is_its_steps(subject: EnvUnderTest) -> Faults:
    """Check that six control steps give the same result in one chunk as in three."""
    actions = subject.random_actions(num_steps=6)
    subject.start()
    once = subject.env.step_chunk(actions)
    subject.start()
    parts = [subject.env.step_chunk(actions[:, i : i + 2]) for i in (0, 2, 4)]
    if not same(once.frames, parts[-1].frames):
        yield "the same actions lead to other frames in shorter chunks"
    if not np.array_equal(once.rewards, np.concatenate([part.rewards for part in parts], axis=1)):
        yield "the same actions give other rewards in shorter chunks"


def an_ended_row_is_refused(subject: EnvUnderTest) -> Faults:
    """Check that a row that has ended raises RuntimeError until its reset."""
    subject.start()
    subject.env.step_chunk(subject.random_actions(num_steps=TIME_LIMIT))
    try:
        subject.env.step_chunk(subject.random_actions())
    except RuntimeError:
        return
    yield "an ended row is stepped without a reset; step_chunk() must raise RuntimeError"


def actions_are_clipped(subject: EnvUnderTest) -> Faults:
    """Check that actions beyond their limits act as those limits."""
    env = subject.env
    wild = np.broadcast_to(env.action_high + 10, (NUM_ENVS, CHUNK, env.num_actions)).astype(np.float32)
    subject.start()
    first = env.step_chunk(wild)
    subject.start()
    second = env.step_chunk(np.minimum(wild, env.action_high))
    if not same(first.frames, second.frames):
        yield "actions beyond their limits are not clipped"


def wrong_actions_are_refused(subject: EnvUnderTest) -> Faults:
    """Check that actions of another shape, or with NaN, raise ValueError."""
    broken = subject.random_actions()
    broken[1, 0, 0] = np.nan
    for what, actions in (("of a wrong shape", subject.random_actions()[:, :, :-1]), ("that hold NaN", broken)):
        subject.start()
        try:
            subject.env.step_chunk(actions)
        except ValueError:
            continue
        yield f"actions {what} are taken; step_chunk() must raise ValueError (VectorEnv.checked does)"


def a_closed_one_refuses(subject: EnvUnderTest) -> Faults:
    """Check that a reset after close() raises RuntimeError."""
    closed = subject.make()
    closed.close()
    try:
        closed.reset(ALL, ALL)
    except RuntimeError:
        return
    yield "a closed environment is reset; reset() must raise RuntimeError"


def results_are_the_callers(subject: EnvUnderTest) -> Faults:
    """Check that returned arrays are never written again."""
    subject.start()
    first = subject.env.step_chunk(subject.random_actions())
    kept = (first.frames.images.copy(), first.frames.proprio.copy(), first.rewards.copy())
    subject.env.step_chunk(subject.random_actions(1))
    now = (first.frames.images, first.frames.proprio, first.rewards)
    if not all(map(np.array_equal, kept, now)):
        yield "a later step writes into frames or rewards that were returned before"


CHECKS: tuple[Callable[[EnvUnderTest], Faults], ...] = (
    spaces_are_described,
    shapes_and_types,
    pictures_show_something,
    a_seed_decides,
    a_past_does_not_matter,
    seeds_differ,
    a_reset_touches_its_rows,
    inactive_rows_stand_still,
    the_time_limit_truncates,
    final_frames_are_shown,
    a_chunk_is_its_steps,
    an_ended_row_is_refused,
    actions_are_clipped,
    wrong_actions_are_refused,
    results_are_the_callers,
    a_closed_one_refuses,
)


def broken_promises(subject: EnvUnderTest) -> Iterator[tuple[str, str]]:
    """Yield the name of a check and what is broken, for all checks; an exception in a check is also reported."""
    for check in CHECKS:
        try:
            for fault in check(subject):
                yield check.__name__, fault
        except Exception as error:  # third-party code may raise anything
            yield check.__name__, f"it raised {type(error).__name__}: {error}"

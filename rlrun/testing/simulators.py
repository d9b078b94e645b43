"""The promises of the VectorEnv interface, as checks that any simulator can be run through.

Each check yields sentences about what is broken; passing it does not prove the promise. A `Note` is a sentence about a
world that keeps its promises, or about one that a check cannot judge. `CHECKS` lists all checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rlrun.config.own_reward import KEY as OWN_REWARD
from rlrun.config.schema import EnvConfig
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS, starts_of
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import RunError

NUM_ENVS = 3
CHUNK = 4
TIME_LIMIT = 10
ALL = np.arange(NUM_ENVS)
SPLIT_SEEDS = {"validation": VALIDATION_SEEDS[1], "test": TEST_SEEDS[1], "training": TRAINING_SEEDS[1]}
NUM_TRIES = 20  # episodes of which one must last as long as a check needs
_NUM_UNLIKE = 3  # states one control step before the limit that a simulator does not make equal by chance
Faults = Iterator[str]


class Note(str):
    """A sentence that is no fault."""


class NotJudged(Exception):
    """A check does not apply to this world; its text says why."""


@dataclass
class EnvUnderTest:
    """A simulator under test. make: returns a new one of three rows; the time limit is ten control steps. env: one."""

    config: EnvConfig
    make: Callable[[], VectorEnv]
    env: VectorEnv

    def start(self, seed: int = 7) -> Frames:
        """Reset all rows with the same seed."""
        return self.env.reset(ALL, np.full(NUM_ENVS, seed))

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the limits of the actions, [A] each; unbounded ones are taken as two wide."""
        low, high = self.env.spaces.limits
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2, -1))
        return low, np.where(np.isfinite(high), high, low + 2)

    def random_actions(self, seed: int = 0, num_steps: int = CHUNK, width: float = 0.2) -> np.ndarray:
        """Return float32 [B, C, A]: the same random actions in every row. width: of the middle of the range, 0..1."""
        low, high = self.limits()
        middle = (1 - width) / 2
        share = np.random.default_rng(seed).uniform(middle, 1 - middle, (1, num_steps, self.env.spaces.num_actions))
        return np.repeat(low + share * (high - low), self.env.num_envs, axis=0).astype(np.float32)

    def lasting(self, num_steps: int) -> tuple[int, np.ndarray]:
        """Return seed and actions [B, num_steps, A] of an episode of that length. Raises NotJudged: there is none."""
        num_truncated = 0
        for i in range(NUM_TRIES):
            actions = self.random_actions(i, num_steps, width=1.0 if i % 2 else 0.2)
            self.start(7 + i)
            result = self.env.step_chunk(actions)
            is_cut_off = result.truncated.any() and num_steps < TIME_LIMIT
            if result.step_valid.all() and not result.terminated.any() and not is_cut_off:
                return 7 + i, actions
            num_truncated += bool(result.truncated.any())
        how = f", {num_truncated} of them truncated" if num_truncated else ""
        raise NotJudged(f"each of {NUM_TRIES} episodes ended within {num_steps} control steps{how}")


def contract_config(config: EnvConfig) -> EnvConfig:
    """Return `config` with the time limit that the checks rely on."""
    return dataclasses.replace(config, max_control_steps=TIME_LIMIT)


def same(one: Frames, other: Frames) -> bool:
    """Return whether two sets of frames are equal, bit for bit."""
    return np.array_equal(one.images, other.images) and np.array_equal(one.proprio, other.proprio)


def _row(frames: Frames, row: int | np.integer) -> Frames:
    return frames.rows(np.array([row]))


def _of_shape(what: str, array: np.ndarray, shape: tuple[int, ...], kind: type) -> Faults:
    if array.shape != shape or array.dtype != kind:
        yield f"{what} are {array.dtype} {list(array.shape)}; promised are {np.dtype(kind)} {list(shape)}"


def _frame_faults(subject: EnvUnderTest, frames: Frames, num_rows: int) -> Faults:
    env = subject.env
    size = subject.config.image_size
    yield from _of_shape("images", frames.images, (num_rows, env.spaces.num_images, size, size, 3), np.uint8)
    yield from _of_shape("proprioception", frames.proprio, (num_rows, env.spaces.num_proprio), np.float32)
    if not np.isfinite(frames.proprio).all():
        yield "proprioception holds NaN or infinity"
    if len(frames.instructions) != num_rows or not all(frames.instructions):
        yield f"{len(frames.instructions)} instructions for {num_rows} rows, or an empty one"


def spaces_are_described(subject: EnvUnderTest) -> Faults:
    """Check that limits, names and sizes fit together."""
    env = subject.env
    spaces = env.spaces
    counts = {len(spaces.action_names), len(spaces.action_low), len(spaces.action_high), spaces.num_actions}
    if len(counts) > 1 or not spaces.num_actions:
        yield f"num_actions, action_names, action_low and action_high differ in length: {sorted(counts)}"
    low, high = spaces.limits
    if not (low < high).all():
        yield "action_low is not below action_high"
    if spaces.num_images + spaces.num_proprio == 0:
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
    """Check that no camera shows one colour all the time, and that pictures of `render` have the promised shape."""
    first = subject.env.reset(ALL, ALL)
    later = subject.env.step_chunk(subject.random_actions(num_steps=TIME_LIMIT, width=1.0)).frames
    images = np.concatenate([first.images, later.images])  # at a start it may be dark
    if subject.env.spaces.num_images and not np.ptp(images, axis=(2, 3)).any((0, 2)).all():
        yield "a camera's pictures are of one colour"
    try:
        picture = subject.env.render(0, 120, 160)
    except Exception as error:  # third-party code may raise anything, and a run goes on without it
        raise NotJudged(f"render() draws nothing for people: {type(error).__name__}: {error}") from error
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


def seeds_are_taken(subject: EnvUnderTest) -> Faults:
    """Check that the seeds of all splits start episodes; a note tells that all of these begin alike."""
    frames = [subject.start()]
    for split, seed in SPLIT_SEEDS.items():
        try:
            frames.append(subject.start(seed))
        except Exception as error:  # third-party code may raise anything
            yield f"reset() refuses seed {seed}, one of those of {split}: {type(error).__name__}: {error}"
    if len(frames) > 1 and len({start.digest for shown in frames for start in starts_of(shown, ALL)}) == 1:
        what = "the world has one start, its starts differ in what is not observed, or reset() does not use its seeds"
        yield Note(f"the first observations of {len(frames)} seeds are equal: {what}")


def a_reset_touches_its_rows(subject: EnvUnderTest) -> Faults:
    """Check that reset() of one row leaves the others as they are."""
    env = subject.env
    seed, actions = subject.lasting(CHUNK)
    subject.start(seed)
    env.step_chunk(actions)
    expected = env.step_chunk(subject.random_actions(1))
    subject.start(seed)
    env.step_chunk(actions)
    env.reset(np.array([1]), np.array([55]))
    result = env.step_chunk(subject.random_actions(1))
    if not all(same(_row(result.frames, i), _row(expected.frames, i)) for i in (0, 2)):
        yield "reset() of one row changes the others"


def inactive_rows_stand_still(subject: EnvUnderTest) -> Faults:
    """Check that a row left out of a chunk is not stepped. If all rows move together, RuntimeError is allowed."""
    env = subject.env
    out = np.array([True, False, True])
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
    """Check that an episode that goes on until env.max_control_steps ends there, inside the chunk, truncated."""
    seed, actions = subject.lasting(TIME_LIMIT)
    actions = np.concatenate([actions, subject.random_actions(num_steps=2)], axis=1)
    subject.start(seed)
    last = [subject.env.step_chunk(actions[:, i : i + CHUNK]) for i in range(0, TIME_LIMIT, CHUNK)][-1]
    if not last.truncated.all() or last.terminated.any():
        yield "an episode is not truncated at env.max_control_steps"
        return
    if last.step_valid.tolist() != [[True, True, False, False]] * NUM_ENVS or last.rewards[:, 2:].any():
        yield "steps after the end of an episode are valid, or have rewards"
    if last.infos[0].get("episode_length") != TIME_LIMIT:
        yield f"infos have episode_length {last.infos[0].get('episode_length')} after {TIME_LIMIT} control steps"


def final_frames_are_shown(subject: EnvUnderTest) -> Faults:
    """Check that the frames of an ended row are its last ones: they depend on its actions, unlike a next start."""
    before: list[Frames] = []
    after: list[Frames] = []
    is_shown = True
    for i in range(NUM_TRIES):
        actions = subject.random_actions(i, TIME_LIMIT + 2, width=1.0)
        subject.start()
        near = subject.env.step_chunk(actions[:, : TIME_LIMIT - 1])
        if near.ended.any() or any(same(near.frames, other) for other in before):
            continue
        last = subject.env.step_chunk(actions[:, TIME_LIMIT - 1 :])
        subject.start()
        exact = subject.env.step_chunk(actions[:, :TIME_LIMIT])
        is_shown = is_shown and same(last.frames, exact.frames)
        if last.truncated.all():
            before.append(near.frames)
            after.append(last.frames)
        if len(before) == _NUM_UNLIKE:
            is_shown = is_shown and not all(same(after[0], other) for other in after)
            break
    if not is_shown:
        yield "the frames of an ended row are not those of its last step"


def a_chunk_is_its_steps(subject: EnvUnderTest) -> Faults:
    """Check that six control steps give the same result in one chunk as in three."""
    seed, actions = subject.lasting(6)
    subject.start(seed)
    once = subject.env.step_chunk(actions)
    subject.start(seed)
    parts = [subject.env.step_chunk(actions[:, i : i + 2]) for i in (0, 2, 4)]
    if not same(once.frames, parts[-1].frames):
        yield "the same actions lead to other frames in shorter chunks"
    if not np.array_equal(once.rewards, np.concatenate([part.rewards for part in parts], axis=1)):
        yield "the same actions give other rewards in shorter chunks"


def an_ended_row_is_refused(subject: EnvUnderTest) -> Faults:
    """Check that a row that has ended raises RuntimeError until its reset."""
    subject.start()
    if not subject.env.step_chunk(subject.random_actions(num_steps=TIME_LIMIT)).ended.all():
        return  # which another check tells
    try:
        subject.env.step_chunk(subject.random_actions())
    except RuntimeError:
        return
    yield "an ended row is stepped without a reset; step_chunk() must raise RuntimeError"


def actions_are_clipped(subject: EnvUnderTest) -> Faults:
    """Check that actions beyond their limits act as those limits."""
    env = subject.env
    _, high = env.spaces.limits
    beyond = subject.limits()[1] + 10 * np.isfinite(high)
    wild = np.broadcast_to(beyond, (NUM_ENVS, CHUNK, env.spaces.num_actions)).astype(np.float32)
    subject.start()
    first = env.step_chunk(wild)
    subject.start()
    second = env.step_chunk(np.minimum(wild, high))
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
    """Check that a reset after close() raises."""
    closed = subject.make()
    closed.close()
    try:
        closed.reset(ALL, ALL)
    except Exception as error:  # any one tells the caller
        if not isinstance(error, RuntimeError):
            yield Note(f"reset() raises {type(error).__name__} after close(), where others raise RuntimeError")
        return
    yield "a closed environment is reset; reset() must raise RuntimeError"


def results_are_the_callers(subject: EnvUnderTest) -> Faults:
    """Check that returned arrays are never written again."""
    seed, actions = subject.lasting(CHUNK)
    subject.start(seed)
    first = subject.env.step_chunk(actions)
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
    a_reset_touches_its_rows,
    inactive_rows_stand_still,
    the_time_limit_truncates,
    final_frames_are_shown,
    a_chunk_is_its_steps,
    an_ended_row_is_refused,
    actions_are_clipped,
    wrong_actions_are_refused,
    results_are_the_callers,
    seeds_are_taken,
    a_closed_one_refuses,
)


def findings(subject: EnvUnderTest) -> Iterator[tuple[str, str]]:
    """Yield the name of a check and what is broken or noted, for all checks; an exception in a check is a fault.

    Raises RunError for a fault of an own reward.
    """
    for check in CHECKS:
        try:
            for fault in check(subject):
                yield check.__name__, fault
        except NotJudged as reason:
            yield check.__name__, Note(f"not judged: {reason}")
        except RunError as error:
            if error.key == OWN_REWARD:
                raise  # no fault of the simulator, and the same in each check
            yield check.__name__, f"it raised {type(error).__name__}: {error}"
        except Exception as error:  # third-party code may raise anything
            yield check.__name__, f"it raised {type(error).__name__}: {error}"


def broken_promises(subject: EnvUnderTest) -> Iterator[tuple[str, str]]:
    """Yield the name of a check and what is broken, for all checks, without notes."""
    return ((name, fault) for name, fault in findings(subject) if not isinstance(fault, Note))

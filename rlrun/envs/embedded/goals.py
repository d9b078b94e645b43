"""BDDL goals of BEHAVIOR activities, evaluated by the bddl package with rlrun's own predicates."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import mujoco
import numpy as np

mujoco.set_mju_user_warning(logging.getLogger(__name__).warning)  # else MuJoCo writes a file in the working directory


Predicate = Callable[..., bool]  # (row, *object names) -> whether it holds


@dataclass(eq=False)
class Row:
    """State of one episode. `is_over` rows must be reset before they are stepped again."""

    data: mujoco.MjData
    seed: int = 0
    num_steps: int = 0
    is_over: bool = True
    toggled_on: set[str] = field(default_factory=set)  # latched: stays on once its button was pressed
    held: dict[str, str] = field(default_factory=dict)  # side -> body in that hand
    grasp_anchors: dict[int, np.ndarray] = field(default_factory=dict)  # equality id -> its eq_data while held
    satisfied_fraction: float = 0.0
    shaping: float = 0.0

    def restart(self, model: mujoco.MjModel, seed: int) -> None:
        """Reset to the model's start state, with nothing left of the last episode."""
        mujoco.mj_resetData(model, self.data)
        self.seed = seed
        self.num_steps = 0
        self.is_over = False
        self.toggled_on.clear()
        self.held.clear()
        self.grasp_anchors.clear()

    def is_broken(self) -> bool:
        """Return whether MuJoCo warned about a bad state (it then resets the data itself) or a number is not finite."""
        bad = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
        if any(self.data.warning[kind].number for kind in bad):
            return True
        return not (np.isfinite(self.data.qpos.sum()) and np.isfinite(self.data.qvel.sum()))


@dataclass(frozen=True)
class GoalStatus:
    """How much of the goal holds.

    Example: two of three cans are in the bin: q_score 2/3, unsatisfied (0,) as the one head is a forall.
    """

    success: bool
    satisfied: tuple[int, ...]  # indices of goal heads
    unsatisfied: tuple[int, ...]
    q_score: float  # fraction of literals, of the best ground option


@dataclass(frozen=True)
class SceneObject:
    """The object that a BDDL term stands for; `name` is a body of the MuJoCo model."""

    name: str


class Goal:
    """Compiled goal of one activity.

    objects: BDDL term such as "radio_receiver.n.01_1" -> body name.
    predicates: BDDL predicate name -> function of a row and body names.
    Raises ImportError or ValueError that names the missing part.
    """

    def __init__(self, activity: str, objects: Mapping[str, str], predicates: Mapping[str, Predicate]):
        try:  # bddl.activity would load networkx and an object taxonomy, which are not needed
            from bddl import condition_evaluation as evaluation
            from bddl.parsing import parse_domain, parse_problem
        except ImportError as error:
            raise ImportError("goals need the bddl package: pip install bddl==3.6.0") from error
        domain, *_ = parse_domain("omnigibson")
        _, terms, _, goal = parse_problem(activity, 0, domain)
        scope = evaluation.create_scope(terms)
        missing = sorted(set(scope) - set(objects))
        if missing:
            raise ValueError(f"activity {activity!r}: no object of the scene stands for {', '.join(missing)}")
        scope.update({term: SceneObject(name) for term, name in objects.items()})
        self._evaluate = evaluation.evaluate_state
        self._backend = _backend(predicates)
        self._heads = evaluation.compile_state(goal, self._backend, scope=scope, object_map=terms)
        self._options = evaluation.get_ground_state_options(self._heads, self._backend, scope, terms)

    def status(self, row: Row) -> GoalStatus:
        """Evaluate heads and ground literals on the present state of `row`."""
        self._backend.row = row
        success, heads = self._evaluate(self._heads)
        fractions = [len(self._evaluate(option)[1]["satisfied"]) / len(option) for option in self._options]
        return GoalStatus(bool(success), tuple(heads["satisfied"]), tuple(heads["unsatisfied"]), float(max(fractions)))


def _backend(predicates: Mapping[str, Predicate]):
    """Return a bddl backend whose predicates evaluate `predicates` on `backend.row`."""
    from bddl.backend_abc import BDDLBackend
    from bddl.logic_base import BinaryAtomicFormula, UnaryAtomicFormula

    class Backend(BDDLBackend):
        """Returns predicates to bddl; `row` is the state that they are evaluated on."""

        row: Row

        def get_predicate_class(self, predicate_name: str) -> type:
            if predicate_name not in predicates:
                raise ValueError(f"the embedded world does not know the predicate {predicate_name!r}")
            holds = predicates[predicate_name]
            num_objects = len(inspect.signature(holds).parameters) - 1
            base = UnaryAtomicFormula if num_objects == 1 else BinaryAtomicFormula

            def _evaluate(self, *objects: SceneObject) -> bool:
                return holds(backend.row, *(obj.name for obj in objects))

            def _sample(self, *objects_and_state) -> bool:
                raise RuntimeError("the embedded world places objects itself; bddl sampling is not used")

            return type(
                predicate_name, (base,), {"STATE_NAME": predicate_name, "_evaluate": _evaluate, "_sample": _sample}
            )

    backend = Backend()
    return backend

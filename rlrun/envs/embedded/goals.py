"""BDDL goals of BEHAVIOR activities, evaluated by the bddl package with rlrun's own predicates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlrun.envs.embedded.world_state import Row

Predicate = Callable[..., bool]  # (row, *object names) -> whether it holds


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
    Raises ImportError or ValueError that names what is missing.
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

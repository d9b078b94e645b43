"""Real SLURM over two hosts: a heterogeneous job is preempted and trains to its end, a failing one fails; a sweep."""

from __future__ import annotations

import json
import re
import time

import pytest

from rlrun.init import SITE, write
from tests.cluster.cluster import ACCELERATORS, ANY_POLICY, DUAL_NODE
from tests.cluster.slurm import Slurm, why_not
from tests.cluster.testbed import PYTHON, ROOT

NUM_STEPS = 6
SENT = ("placement.roles.rollout.on=sim", "weight_sync.is_checksum_verified=true")  # weights, by object stores
ONE_NODE = ("run=debug", "rollout.num_workers=2", "cluster.object_store_bytes=200000000")
pytestmark = pytest.mark.timeout(1200)  # jobs wait for each other, longer on a busy machine


@pytest.fixture(scope="module")
def slurm(two_hosts):
    """A controller and two nodes; jobs write their runs into the shared folder."""
    if reason := why_not():
        pytest.skip(reason)
    with Slurm(two_hosts, {"train": "gpu:a100:8", "sim": "gpu:rtx4090:8"}, ACCELERATORS) as slurm:
        yield slurm


def _submit(slurm, *overrides, options=(), script="dual_node"):
    shared = slurm.testbed.shared
    words = [word for word in (DUAL_NODE if script == "dual_node" else ONE_NODE) if not word.startswith("+placement")]
    words += [ANY_POLICY, f"num_steps={NUM_STEPS}", "checkpoint.keep_last=1", *overrides]
    output = f"--output={shared}/job-%j.out"
    return slurm.submit(output, *options, f"scripts/slurm/{script}.sbatch", *words, RLRUN_RUNS=f"{shared}/runs")


def _told(slurm, job: str) -> str:
    """Return all output of a job, for messages."""
    files = [slurm.testbed.shared / f"job-{job}.out", *_run(slurm, job).glob("attempts/*/*.log")]
    return "\n".join(f"{file}:\n{file.read_text()}" for file in files if file.exists())


def _run(slurm, job: str):
    return slurm.testbed.shared / "runs" / f"slurm-{job}"


def test_a_failing_run_is_failed(slurm):
    """Its status is that of the training."""
    empty = slurm.testbed.shared / "empty"
    empty.mkdir()
    job = _submit(slurm, f"checkpoint.resume={empty}")
    ended = slurm.wait(job, 300)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "4:0"), _told(slurm, job)
    assert f"there is nothing at {empty}" in _told(slurm, job)


@pytest.mark.long
def test_a_project_trains_on_one_gpu_of_a_shared_node(slurm):
    """With account, partition and constraint, and scratch for its runs and its cache from the file of the site."""
    shared, project = slurm.testbed.shared, slurm.testbed.shared / "project"
    write(project)
    with (project / SITE).open("a") as site:
        site.write(f'export SCRATCH="{shared}/my scratch"\n')
        site.write('export RLRUN_RUNS="$SCRATCH/runs" RLRUN_CACHE="$SCRATCH/cache"\n')
    asked = ["--account=lab", "--partition=low", "--constraint=a100", "--gpus-per-node=1", "--cpus-per-task=1"]
    neighbour = slurm.submit(*asked, "--mem=100", "--output=/dev/null", "--wrap=sleep 900")
    _until(lambda: slurm.job(neighbour)["JobState"] == "RUNNING", 60, slurm, neighbour)
    words = ["--config-dir", "configs", "run=own", "num_steps=1", "evaluation.num_episodes=2"]
    words += ["cluster.object_store_bytes=200000000", "checkpoint.keep_last=1"]
    where = ["--mem=2000", f"--chdir={project}", f"--output={shared}/job-%j.out"]
    sbatch = str(project / "scripts/slurm/one_gpu.sbatch")
    job = slurm.submit(*asked, *where, sbatch, *words, PYTHONPATH=str(ROOT))
    ended = slurm.wait(job, 450)
    beside = slurm.job(neighbour)
    slurm.head.check("scancel", neighbour)
    run = shared / f"my scratch/runs/slurm-{job}"
    told = [file.read_text() for file in (shared / f"job-{job}.out", *run.glob("attempts/*/*.log"))]
    assert (ended["JobState"], ended["ExitCode"], ended["Account"]) == ("COMPLETED", "0:0", "lab"), "\n".join(told)
    assert (beside["JobState"], beside["NodeList"], ended["NodeList"]) == ("RUNNING", "train", "train")
    assert (run / "policy/config.json").exists() and (shared / "my scratch/cache").is_dir()


@pytest.mark.long
def test_a_node_outside_the_placement_fails_the_job(slurm):
    """Its status is that of the first failure, here of the node."""
    job = _submit(slurm, "placement.nodes.sim.accelerator=H100")
    ended = slurm.wait(job, 300)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "3:0", "0"), _told(slurm, job)
    assert "1: rlrun.node: Node sim" in _told(slurm, job)


@pytest.mark.long
def test_a_preempted_heterogeneous_job_is_requeued_and_trains_to_its_end(slurm):
    """That a resumed run is the uninterrupted one bit for bit is shown by tests/learning/test_resume.py."""
    job = _submit(slurm, *SENT)
    metrics = _run(slurm, job) / "metrics.jsonl"
    _until(lambda: metrics.exists() and metrics.read_text(), 300, slurm, job)
    assert slurm.job(job)["HetJobIdSet"] == f"{job}-{int(job) + 1}"
    urgent = slurm.submit("--partition=high", "--exclusive", "--nodelist=train", "--output=/dev/null", "--wrap=sleep 1")
    _until(lambda: slurm.job(job).get("Restarts") == "1", 120, slurm, job)
    assert slurm.wait(urgent, 120)["JobState"] == "COMPLETED"
    _start_now(slurm, job, str(int(job) + 1))
    ended = slurm.wait(job, 450)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), _told(slurm, job)
    told = _told(slurm, job)
    assert "1: node sim: runs until the head has ended" in told and "marked dead" not in told
    assert "SIGTERM: saved" in told and "0: resumed" in told
    log = (_run(slurm, job) / "attempts" / "1" / "nodes.log").read_text()
    assert "2 nodes: sim (10.77.0.2), train (10.77.0.1)" in log and "1: node sim: the head has ended" in log
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, NUM_STEPS + 1)]
    assert all(abs(line["rollout_logprob_gap"]) < 1e-4 for line in lines)  # rollout acted with the actor's weights
    assert (_run(slurm, job) / "policy" / "model.safetensors").exists()


@pytest.mark.long
def test_a_job_warned_of_its_time_limit_goes_on_and_a_cancelled_one_does_not(slurm):
    """SIGUSR1, as --signal=USR1@… sends it to the step, saves and requeues; scancel saves and ends the job."""
    job = _submit(slurm, "num_steps=100000", options=["--nodelist=train"], script="single_node")
    _until(lambda: "0: step" in _told(slurm, job), 300, slurm, job)
    slurm.head.check("scancel", "--signal=USR1", job)
    _until(lambda: slurm.job(job).get("Restarts") == "1", 120, slurm, job)
    assert "0: SIGUSR1: saved" in _told(slurm, job)
    _start_now(slurm, job)
    second = _run(slurm, job) / "attempts" / "1" / "nodes.log"
    _until(lambda: second.exists() and "0: step" in second.read_text(), 300, slurm, job)
    assert "0: resumed" in second.read_text()
    slurm.head.check("scancel", job)
    ended = slurm.wait(job, 120)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "1"), _told(slurm, job)
    assert "0: SIGTERM: saved" in second.read_text()


@pytest.mark.long
def test_a_sweep_is_an_array_whose_tasks_are_its_runs(slurm):
    shared = slurm.testbed.shared
    words = ["-m", *ONE_NODE, "env.num_workers=2", ANY_POLICY, "num_steps=1", f"output_dir={shared}/sweep", "seed=0,1"]
    command = [PYTHON, "-m", "rlrun.train", *words, "--sbatch", "scripts/slurm/single_node.sbatch"]
    done = slurm.head.run(command, timeout=120, SBATCH_OUTPUT=f"{shared}/task-%A-%a.out")
    assert done.returncode == 0 and "2 runs in" in done.stdout, done.stdout + done.stderr
    (job,) = re.findall(r"Submitted batch job (\d+)", done.stdout)
    for task in (0, 1):
        ended = slurm.wait(f"{job}_{task}", 450)
        run = shared / "sweep" / f"seed={task}"
        told = [file.read_text() for file in (shared / f"task-{job}-{task}.out", *run.glob("attempts/*/*.log"))]
        assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), "\n".join(told)
        assert f"seed: {task}\n" in (run / "config.yaml").read_text()
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 1


def _start_now(slurm, *jobs: str) -> None:
    """SLURM delays requeued jobs for two minutes: slurmd refuses a job that starts in the second of its end."""
    time.sleep(2.5)
    for job in jobs:
        slurm.head.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])


def _until(is_true, deadline_s: float, slurm, job: str) -> None:
    end = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < end, f"{slurm.job(job)}\n{_told(slurm, job)}"
        time.sleep(0.3)

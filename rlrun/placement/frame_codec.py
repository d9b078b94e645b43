"""Whether camera frames are compressed on their way to another node: where that is quicker than sending them. Pure."""

from __future__ import annotations

from rlrun.config.schema import FrameCodec, RunConfig, Simulator
from rlrun.placement.plan import Choice

# What is left of frames after coding, on the safe side. Of MuJoCo's flat colours `python -m benchmarks.codec` leaves a
# fiftieth; the others are taken to be like photographs.
CODED_SHARE = {Simulator.mujoco: 0.1, Simulator.omnigibson: 0.7, Simulator.gymnasium: 0.7, Simulator.libero: 0.7}
CODING_NS = 4.0  # per byte of frames, both ends together; that command prints less than half


def choose_codec(config: RunConfig, num_images: int) -> Choice:
    """For frames that leave their node; within a node they are never coded. num_images: cameras of an observation."""
    wanted, link = config.placement.frame_codec, config.placement.link_gbit_per_s
    if wanted is not FrameCodec.auto:
        return Choice(wanted.value, "placement.frame_codec")
    if num_images == 0:
        return Choice(FrameCodec.raw.value, "observations have no frames")
    raw_ns, share = 8 / link, CODED_SHARE[config.env.simulator]
    coded_ns = share * raw_ns + CODING_NS
    codec = FrameCodec.lossless if coded_ns < raw_ns else FrameCodec.raw
    why = f"at {link:g} Gbit/s a byte of frames takes {raw_ns:.1f} ns, coded about {coded_ns:.1f} ns with the coding"
    return Choice(codec.value, why)


def sent_share(config: RunConfig, codec: Choice) -> float:
    """Of the bytes of frames that leave their node."""
    return CODED_SHARE[config.env.simulator] if codec.value == FrameCodec.lossless.value else 1.0

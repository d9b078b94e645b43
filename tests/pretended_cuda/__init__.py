"""The whole program on a pretended `cuda:0`: its tensors say that they are there, and compute on the CPU.

It finds tensors on the wrong device, and counts waits for the device and copies between host and device, by line. It
does not show kernels, device memory, NCCL, or what happens at the same time.

    python -m tests.pretended_cuda rlrun.train run=single_process rollout.precision=bf16 cache_dir=/tmp/pretended
"""

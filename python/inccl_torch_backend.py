# SPDX-License-Identifier: Apache-2.0
"""Makes "inccl" a backend of torch.distributed. `import torch` calls register() wherever inccl is installed (entry
point "torch.backends"), so this module is beside the package, and loads it when a group is made."""


def _create(backend_options, pg_options):
    from inccl.torch.process_group import create
    return create(backend_options, pg_options)


def register() -> None:
    """Once per process; more calls change nothing."""
    import torch.distributed as dist
    if dist.is_available() and not hasattr(dist.Backend, "INCCL"):
        dist.Backend.register_backend("inccl", _create, extended_api=True, devices=["cpu", "cuda"])

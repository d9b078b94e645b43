"""Reads the index of a checkpoint's shards, which torch pickles: only the classes of such an index are made from it.

A checkpoint may come from elsewhere. torch reads shards as tensors only (`weights_only`) if the index says
that they are tensors; it unpickles whatever the index calls bytes, and opens the files that it names.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint.metadata import StorageMeta, TensorStorageMetadata

INDEX = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata")),
    *((_METADATA, name) for name in ("TensorProperties", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),  # from its name to torch.strided and the like
    ("torch", "Size"),
    ("pathlib", "PosixPath"),  # where the checkpoint was written, which nothing reads
}


class ShardReader(FileSystemReader):
    """torch's reader of a folder of shards, which runs no code of the folder."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index. Raises OSError, and UnpicklingError for what is not the index of tensors in this folder."""
        with (Path(self.path) / INDEX).open("rb") as stream:
            metadata = _IndexUnpickler(stream).load()
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise pickle.UnpicklingError(f"{INDEX} is no index of shards")
        for name, stored in metadata.state_dict_metadata.items():
            if not isinstance(stored, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{INDEX} calls {name!r} a {type(stored).__name__}, no tensor")
        for place in metadata.storage_data.values():
            if Path(place.relative_path).name != place.relative_path or place.transform_descriptors:
                raise pickle.UnpicklingError(f"{INDEX} leads to {place.relative_path!r}, which is no shard beside it")
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) not in _CLASSES and not is_dtype:
            raise pickle.UnpicklingError(f"{INDEX} names {module}.{name}, which no index of shards has")
        return super().find_class(module, name)

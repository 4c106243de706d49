"""faiss with GPUs that are played by its CPU indexes."""

from typing import Any

import faiss


class OnGpu:
    """An index that answers as one on a GPU does: no list longer than 2048."""

    def __init__(self, index: Any) -> None:
        self.index, self.asked = index, 0

    def search(self, queries: Any, k: int) -> Any:
        assert k <= 2048
        self.asked += 1
        return self.index.search(queries, k)


class GpuFaiss:
    """faiss with as many GPUs as one likes."""

    def __init__(self) -> None:
        self.copied: list[tuple[str, Any]] = []
        self.set: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(faiss, name)

    class StandardGpuResources:
        pass

    class GpuClonerOptions:
        useFloat16 = True

    class GpuMultipleClonerOptions(GpuClonerOptions):
        shard = False

    def index_cpu_to_gpu(self, resources: Any, gpu: int, index: Any, options: Any) -> OnGpu:
        assert isinstance(resources, self.StandardGpuResources)
        assert not options.useFloat16
        self.copied.append(("one", gpu))
        return OnGpu(index)

    def index_cpu_to_gpus_list(self, index: Any, co: Any, gpus: list[int]) -> OnGpu:
        assert co.shard
        assert not co.useFloat16
        self.copied.append(("several", gpus))
        return OnGpu(index)

    def GpuParameterSpace(self) -> Any:
        played = self

        class Space:
            def set_index_parameter(self, index: OnGpu, name: str, value: int) -> None:
                played.set.append((name, value))
                setattr(index.index, name, value)

        return Space()

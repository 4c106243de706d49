"""What it costs to pack a chunk of decoded samples for another process and to unpack it, in a process like a decode worker.

python -m benchmarks.packing SHARD [--keep]     # milliseconds of processor time for one sample
"""

import pickle
import sys
import time

from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.workers import decode_sample
from noisegate.pipeline.system.machine import reuse_memory

TIMES = 40


def main() -> None:
    raws = list(ShardReader(Shard(sys.argv[1])))[:16]
    if "--keep" in sys.argv:
        reuse_memory(16 << 20, 64 << 20)  # as in the decode workers
    least = float("inf")
    for _ in range(3):
        chunk = [decode_sample(raw, Preprocess(), DecodeOptions()) for raw in raws]
        before = time.process_time()
        for _ in range(TIMES):
            pickle.loads(pickle.dumps(chunk))
        least = min(least, time.process_time() - before)
    print(1000 * least / TIMES / len(raws))


if __name__ == "__main__":
    main()

"""What it is worth that training on a processor uses freed memory again: `python -m benchmarks.malloc [--rounds 3]`.

The same steps of a small ResNet on one thread, in processes of their own that take turns, with and without
`noisegate.pipeline.system.machine.reuse_memory`; processor time, medians, and whether the last losses are the same number.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys

STEPS, FIRST = 100, 10


def train(reuse: bool) -> dict[str, float]:
    """Processor seconds and page faults of the steps after the first few, and the last loss."""
    import torch

    from noisegate.pipeline.estimators.loading import allow_torchvision
    from noisegate.pipeline.system.machine import reuse_memory

    allow_torchvision()
    import timm

    if reuse and not reuse_memory():
        sys.exit("no mallopt here")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = timm.create_model("test_resnet", num_classes=64).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters())
    pictures = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    began = resource.getrusage(resource.RUSAGE_SELF)
    loss = torch.zeros(())
    for step in range(FIRST + STEPS):
        if step == FIRST:
            began = resource.getrusage(resource.RUSAGE_SELF)
        optimizer.zero_grad()
        loss = network(pictures).square().mean()
        loss.backward()
        optimizer.step()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime
    return {"seconds": seconds, "faults": ended.ru_minflt - began.ru_minflt, "loss": float(loss.detach())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", choices=["kept", "plain"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(train(given.once == "kept")))
        return
    found: dict[str, list[dict[str, float]]] = {"plain": [], "kept": []}
    for _ in range(given.rounds):
        for how, results in found.items():
            command = [sys.executable, "-m", "benchmarks.malloc", "--once", how]
            results.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    seconds = {how: statistics.median(result["seconds"] for result in results) for how, results in found.items()}
    for how, results in found.items():
        print(f"{how:6} {seconds[how] / STEPS * 1000:6.1f} ms a step, {results[0]['faults'] / STEPS:8.0f} page faults")
    print(f"times as fast: {seconds['plain'] / seconds['kept']:.2f}")
    print(f"same losses: {len({result['loss'] for results in found.values() for result in results}) == 1}")


if __name__ == "__main__":
    main()

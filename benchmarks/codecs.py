"""What each codec costs and loses, beside hivemind's, in one run on one vector.

    python benchmarks/codecs.py [--parameters 12500000] [--repeats 3]

The vector is like a pseudo-gradient: normal values whose size differs between rows. Time is CPU time of one core, the
best of the repeats; MB are those of the float32 values. "With residual" is the error of the sum of 32 encodings of the
vector when what each lost is added to the next, as contributions are sent.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from p2ptrain.wire.codecs import CODECS

ROW = 1024
NUM_SENT = 32


def pseudo_gradient(size: int) -> np.ndarray:
    chance = np.random.default_rng(0)
    values = chance.standard_normal(size, dtype=np.float32)
    scales = np.exp(chance.standard_normal(-(-size // ROW), dtype=np.float32))
    return values * np.repeat(scales, ROW)[:size]


def cpu_seconds(function: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began_at = time.process_time()
        function()
        best = min(best, time.process_time() - began_at)
    return best


def relative_error(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def error_with_residual(codec: object, values: np.ndarray) -> float:
    residual, total = np.zeros_like(values), np.zeros(values.size)
    for _ in range(NUM_SENT):
        decoded = codec.decode(codec.encode(values + residual), values.size)  # type: ignore[attr-defined]
        residual = values + residual - decoded
        total += decoded
    return relative_error(total / NUM_SENT, values)


def ours(values: np.ndarray, repeats: int) -> None:
    for name, codec in CODECS.items():
        data = codec.encode(values)
        encode = cpu_seconds(lambda codec=codec: codec.encode(values), repeats)
        decode = cpu_seconds(lambda codec=codec, data=data: codec.decode(data, values.size), repeats)
        error = relative_error(codec.decode(data, values.size), values)
        late = error_with_residual(codec, values[: 1 << 20])
        show(f"p2ptrain {name}", len(data) / values.size, error, f"{late:.2e}", values.nbytes, encode, decode)


def hivemind(values: np.ndarray, repeats: int) -> None:
    import torch
    from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.proto.runtime_pb2 import CompressionType

    tensor = torch.from_numpy(values)
    for name in ("FLOAT16", "MEANSTD_16BIT", "UNIFORM_8BIT", "QUANTILE_8BIT"):
        kind = CompressionType.Value(name)
        message = serialize_torch_tensor(tensor, kind)
        encode = cpu_seconds(lambda kind=kind: serialize_torch_tensor(tensor, kind), repeats)
        try:
            decoded = deserialize_torch_tensor(message).numpy()
        except TypeError as error:  # its 8-bit codecs with numpy 2.4 and newer
            print(f"| hivemind {name.lower()} | | fails: {error} | | | |")
            continue
        decode = cpu_seconds(lambda message=message: deserialize_torch_tensor(message), repeats)
        share = message.ByteSize() / values.size
        show(f"hivemind {name.lower()}", share, relative_error(decoded, values), "none", values.nbytes, encode, decode)


def show(name: str, share: float, error: float, late: str, num_bytes: int, encode: float, decode: float) -> None:
    megabytes = num_bytes / 1e6
    print(
        f"| {name} | {share:.3f} | {error:.2e} | {late} | {1000 * encode / megabytes:.2f} | {1000 * decode / megabytes:.2f} "
        f"| {megabytes / (encode + decode):,.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=12_500_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    values = pseudo_gradient(arguments.parameters)
    print("| codec | bytes per parameter | relative error | with residual | encode, CPU ms per MB | decode | MB/s |")
    print("|---|---|---|---|---|---|---|")
    ours(values, arguments.repeats)
    hivemind(values, arguments.repeats)


if __name__ == "__main__":
    main()

"""What a device can do at most: bandwidth of copies, float32 products, launches of kernels."""

import time

import numpy as np
from cffi import FFI

#: Products of the four models as their sizes come up in training: name, rows of the result, its columns, inner size.
PRODUCTS = (
    ("tree-LSTM, leaves' gates", 950, 384, 128),
    ("tree-LSTM, a level's gates", 60, 384, 256),
    ("tagger, inputs of a minibatch", 1200, 512, 128),
    ("tagger, a step", 50, 512, 128),
    ("seq2seq, inputs of a minibatch", 830, 2048, 256),
    ("seq2seq, a step", 64, 2048, 512),
    ("seq2seq, words of the target", 860, 7858, 512),
    ("transformer, queries, keys, values", 830, 768, 256),
    ("transformer, feed-forward", 830, 1024, 256),
    ("transformer, words of the target", 860, 7858, 256),
)


class Gpu:
    """A GPU through CuPy; products by cuBLAS's own function, so that little of Python is measured."""

    def __init__(self, ordinal: int):
        import cupy
        from cupy_backends.cuda.libs import cublas

        self.cupy, self.cublas = cupy, cublas
        cupy.cuda.Device(ordinal).use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self.handle = cupy.cuda.device.get_cublas_handle()
        cublas.setMathMode(self.handle, cublas.CUBLAS_DEFAULT_MATH)  # no TF32
        cublas.setPointerMode(self.handle, cublas.CUBLAS_POINTER_MODE_HOST)
        self.one, self.zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def name(self) -> dict:
        runtime = self.cupy.cuda.runtime
        name = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
        versions = {
            "cupy": self.cupy.__version__,
            "cuda": runtime.runtimeGetVersion(),
            "driver": runtime.driverGetVersion(),
        }
        return {"name": name, "versions": versions}

    def synchronize(self):
        self.stream.synchronize()

    def random(self, *shape):
        return self.cupy.asarray(np.random.default_rng(0).random(shape, dtype=np.float32))

    def copy(self, to, source):
        self.cupy.cuda.runtime.memcpyAsync(to.data.ptr, source.data.ptr, to.nbytes, 3, self.stream.ptr)

    def product(self, a, b, c):
        # cuBLAS reads column by column: the transposes of all three.
        (m, k), n = a.shape, b.shape[1]
        self.cublas.sgemm(
            self.handle, 0, 0, n, m, k, self.one.ctypes.data, b.data.ptr, n, a.data.ptr, k, self.zero.ctypes.data,
            c.data.ptr, n,
        )  # fmt: skip

    def upload(self, size: int) -> float:
        """Bytes a second from pinned memory."""
        import cupyx

        host, there = cupyx.empty_pinned(size, np.uint8), self.cupy.empty(size, np.uint8)
        host[:] = 1
        copy = self.cupy.cuda.runtime.memcpyAsync
        return size / best(self, lambda: copy(there.data.ptr, host.ctypes.data, size, 1, self.stream.ptr), 5)

    def launches(self, count: int) -> dict:
        """Microseconds an empty kernel takes: by the driver's function, by CuPy, and within a CUDA graph."""
        kernel = self.cupy.RawModule(code='extern "C" __global__ void empty() {}').get_function("empty")
        ffi = FFI()
        sizes = ", ".join(["unsigned"] * 7)
        ffi.cdef(f"int cuLaunchKernel(void*, {sizes}, void*, void**, void**);")
        driver = ffi.dlopen("libcuda.so.1")
        function, stream = ffi.cast("void *", kernel.kernel.ptr), ffi.cast("void *", self.stream.ptr)
        launch, null = driver.cuLaunchKernel, ffi.NULL

        def by_driver():
            for _ in range(count):
                if status := launch(function, 1, 1, 1, 32, 1, 1, 0, stream, null, null):
                    raise RuntimeError(f"cuLaunchKernel: {status}")

        def by_cupy():
            for _ in range(count):
                kernel((1,), (32,), ())

        taken = {"launch_us": best(self, by_driver, 1) / count, "launch_cupy_us": best(self, by_cupy, 1) / count}
        self.stream.begin_capture()
        by_driver()
        graph = self.stream.end_capture()
        taken["launch_in_graph_us"] = best(self, lambda: graph.launch(self.stream), 1) / count
        return {name: round(seconds * 1e6, 3) for name, seconds in taken.items()}


class Cpu:
    """The CPU through NumPy, to try this without a GPU."""

    def name(self) -> dict:
        return {"name": "the CPU", "versions": {"numpy": np.__version__}}

    def synchronize(self):
        pass

    def random(self, *shape):
        return np.random.default_rng(0).random(shape, dtype=np.float32)

    def copy(self, to, source):
        np.copyto(to, source)

    def product(self, a, b, c):
        np.matmul(a, b, out=c)


def best(device, run, count: int, times: int = 4) -> float:
    """Seconds of one of ``count`` runs, the shortest of some times, the first left out."""
    seconds = []
    for _ in range(times):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        device.synchronize()
        seconds.append((time.perf_counter() - start) / count)
    return min(seconds[1:])


def product(device, m: int, n: int, k: int, count: int) -> float:
    """Seconds of C = A B, C of m rows and n columns."""
    a, b, c = device.random(m, k), device.random(k, n), device.random(m, n)
    return best(device, lambda: device.product(a, b, c), count)


def measure(device_name: str, quick: bool, row: dict, show) -> None:
    """Puts all roofs into ``row`` and shows it after each; those that cannot be measured say why under ``"failed"``."""
    kind, _, number = device_name.partition(":")
    device = Gpu(int(number or 0)) if kind == "cuda" else Cpu()
    row["failed"] = []
    size, large = (1 << 30, 8192) if kind == "cuda" else (1 << 28, 2048)
    if quick:
        size, large = size >> 4, large >> 2

    def attempt(name, run):
        try:
            row.update(run())
        except Exception as error:  # the others are worth having
            row["failed"].append(f"{name}: {type(error).__name__}: {error}")
        show(row)

    def copies():
        a, b = device.random(size // 4), device.random(size // 4)
        return {"copy_gb_s": round(2 * size / best(device, lambda: device.copy(a, b), 10) / 1e9, 1)}

    def products():
        seconds = product(device, large, large, large, 5)
        return {"gemm_size": large, "gemm_gflops": round(2 * large**3 / seconds / 1e9, 1)}

    def shapes():
        count = 200 if kind == "cuda" and not quick else 3
        taken = [(what, m, n, k, product(device, m, n, k, count)) for what, m, n, k in PRODUCTS]
        return {
            "products": [
                {"what": what, "m": m, "n": n, "k": k, "us": round(seconds * 1e6, 2),
                 "gflops": round(2 * m * n * k / seconds / 1e9, 1)}
                for what, m, n, k, seconds in taken
            ]
        }  # fmt: skip

    attempt("name", device.name)
    attempt("copies", copies)
    attempt("products", products)
    attempt("products of the models", shapes)
    if kind == "cuda":
        attempt("upload", lambda: {"upload_gb_s": round(device.upload(size >> 3) / 1e9, 1)})
        attempt("launches", lambda: device.launches(1000))

"""The CUDA backend on the emulated device. Every other test runs there too: ``pytest --device emulated tests/...``."""

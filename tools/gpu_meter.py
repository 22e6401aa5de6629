"""Energy and memory of the first GPU that a CUDA program sees, from the driver's counters (NVML): for the peers of bench_gpu.py. `ingot bench
train` reads the same energy counter (src/dev/power.h). Without NVML everything is None."""
import ctypes, os


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _device(nvml):
    """The handle of the first device in CUDA_VISIBLE_DEVICES: an index, or a UUID."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    handle = ctypes.c_void_p()
    if first.isdigit():
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(handle))
    else:
        failed = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
    return None if failed else handle


class Meter:
    def __init__(self):
        self.device = None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            if self.nvml.nvmlInit_v2() == 0:
                self.device = _device(self.nvml)
        except OSError:
            pass

    def joules(self):
        """Since the driver was loaded; the counter moves every 20 to 100 ms."""
        value = ctypes.c_ulonglong()
        if self.device is None or self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(value)):
            return None
        return value.value / 1e3

    def bytes_used(self):
        memory = Memory()
        if self.device is None or self.nvml.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory)):
            return None
        return memory.used


def power(before, after, seconds, tokens):
    """Mean watts and tokens per joule between two readings of joules(); nothing if the counter has not moved."""
    if before is None or after is None or after <= before or seconds <= 0:
        return {}
    return {"watts": (after - before) / seconds, "tokens_per_joule": tokens / (after - before)}

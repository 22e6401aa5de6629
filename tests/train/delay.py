"""A link that delays: two TAP devices, each frame of one leaves the other MIN to MAX ms later, in order.
delay.py DEVICE DEVICE MIN MAX: prints "ready" once the devices are there; they go away with it. No kernel needs sch_netem for that."""
import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def main():
    least, most = float(sys.argv[3]) / 1000, float(sys.argv[4]) / 1000
    first, second = tap(sys.argv[1]), tap(sys.argv[2])
    print("ready", flush=True)
    other = {first: second, second: first}
    waiting = {first: collections.deque(), second: collections.deque()}  # due, frame: to be written there
    while True:
        dues = [queue[0][0] for queue in waiting.values() if queue]
        timeout = max(0, min(dues) - time.monotonic()) if dues else None
        for fd in select.select([first, second], [], [], timeout)[0]:
            queue = waiting[other[fd]]
            due = time.monotonic() + random.uniform(least, most)
            queue.append((max(due, queue[-1][0]) if queue else due, os.read(fd, 65536)))
        now = time.monotonic()
        for fd, queue in waiting.items():
            while queue and queue[0][0] <= now:
                try:
                    os.write(fd, queue.popleft()[1])
                except OSError:  # the device is down: the frame is lost, as on a cable
                    pass


main()

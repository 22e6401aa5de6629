"""mangled(SEED, MOST): bytes of SEED after one to MOST random changes: a byte replaced, some left out, noise put in, a part repeated."""
import os
import random


def mangled(seed, most):
    data = bytearray(seed)
    for _ in range(random.randrange(1, most + 1)):
        at = random.randrange(len(data))
        what = random.randrange(4)
        if what == 0:
            data[at] = random.randrange(256)
        elif what == 1:
            del data[at:at + random.randrange(1, 9)]
        elif what == 2:
            data[at:at] = os.urandom(random.randrange(1, 20))
        else:
            data[at:at] = data[:random.randrange(len(data))]
        data = data or bytearray(b'0')
    return bytes(data)

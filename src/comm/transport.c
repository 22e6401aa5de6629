#include "comm/transport.h"

status transport_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes)
{
    const struct comm_call what = {.op = COMM_ALL_GATHER,
                                   .name = name,
                                   .send = mine,
                                   .recv = all,
                                   .bytes = bytes,
                                   .sequence = ++c->sequence};
    return c->transport->collective(c, &what);
}

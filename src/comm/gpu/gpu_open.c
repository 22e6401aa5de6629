/* Opens the GPUs of all ranks, and the memory that they share. */
#include "comm/gpu/device_comm.h"
#include "comm/health/heartbeat.h"

#include <stdlib.h>
#include <string.h>

/* Two ranks on one GPU could deadlock. */
static status check_gpus(struct comm *world, const struct dev *d)
{
    struct where {
        char machine[HEARTBEAT_HOST], address[DEV_ADDRESS];
    } mine, *all = calloc((size_t)world->ranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the GPUs of %d ranks", world->ranks);
    heartbeat_host(mine.machine);
    status st = dev_address(d, mine.address);
    if (st == STATUS_OK) st = comm_all_gather(world, "GPUs", &mine, all, sizeof mine, NULL);
    for (int r = 0; r < world->ranks && st == STATUS_OK; r++)
        if (r != world->rank && memcmp(&all[r], &mine, sizeof mine) == 0)
            st = FAIL(STATUS_CONFIG,
                      "ranks %d and %d have the same GPU (%s): each rank needs one of its own; start fewer "
                      "ranks, or look at CUDA_VISIBLE_DEVICES",
                      r < world->rank ? r : world->rank, r < world->rank ? world->rank : r, mine.address);
    free(all);
    return st;
}

status comm_devices_open(struct comm *world, struct stream *s, enum gpu_backend how)
{
#if INGOT_CUDA
    const struct device_comm_ops *ops = cuda_device_comm_ops();
#else
    const struct device_comm_ops *ops = NULL; /* no rank has a stream */
#endif
    if (world == NULL || s == NULL) return STATUS_OK;
    CHECK(ops && world == world->world && world->device_ops == NULL, "GPUs are opened once, for all ranks");
    TRY(check_gpus(world, s->dev));
    world->device_ops = ops;
    TRY(ops->start(world, s, how));
    rank_monitor_guard(world->monitor);
    s->look = device_comm_poll_peers;
    s->look_at = world;
    return ops->time(world, s);
}

status comm_devices_register(struct comm *world, void *base, size_t bytes)
{
    return world && world->device_ops ? world->device_ops->share(world, base, bytes) : STATUS_OK;
}

status comm_devices_deregister(struct comm *world, void *base)
{
    return world && world->device_ops ? world->device_ops->unshare(world, base) : STATUS_OK;
}

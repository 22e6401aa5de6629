/* Memory of a job's communication, from the sizes of the files that allocate it. */
#include "comm/call.h"
#include "comm/gpu/cuda/p2p_comm.h"
#include "comm/transport.h"

struct comm_job comm_job(const struct comm *world)
{
    if (world == NULL) return (struct comm_job){.ranks = 1, .here = 1, .shares_memory = true};
    return (struct comm_job){
        .ranks = world->ranks, .here = world->local_ranks, .shares_memory = world->shm != NULL};
}

struct mailbox mailbox_of(size_t bytes_max, int depth)
{
    return (struct mailbox){.bytes_max = bytes_max,
                            .depth = (unsigned)depth,
                            .room = COMM_LINE + (bytes_max + COMM_LINE - 1) / COMM_LINE * (size_t)COMM_LINE};
}

struct comm_memory comm_memory(const struct comm_memory_args *a)
{
    const struct comm_job *job = &a->job;
    const struct mailbox m = mailbox_of(a->mailbox_bytes, a->mailbox_depth);
    struct comm_memory r = {0};
    if (job->ranks == 1) return r;
    const struct host_transport *t = job->shares_memory ? &transport_shm : &transport_mpi;
    r.host = t->bytes(job->ranks, job->here, a->groups);
    if (a->devices) {
        r.device = device_pages(sizeof(struct p2p_comm_flags));
        r.host += DEVICE_FLAGS;
    }
    if (a->mailbox_depth == 0) return r;
    if (a->devices) r.device += device_pages(2 * m.depth * m.bytes_max);
    if (!a->devices || job->mail_by_nccl) r.host += t->mailbox_bytes(&m, a->mailbox_ranks);
    if (a->devices && job->mail_by_nccl) r.host += m.bytes_max; /* a message between GPU and mailbox */
    return r;
}

struct comm_memory comm_memory_used(const struct comm *world)
{
    return world ? world->memory : (struct comm_memory){0};
}

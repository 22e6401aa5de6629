/* ingot plan: memory, FLOPs and, for a named machine, meshes and times, without running anything. */
#include "cli/cli.h"
#include "plan/mesh_plan.h"
#include "train/loop.h"

/* model.vocab_size, from the shards when the file leaves it to them. */
static status resolve_vocab(struct spec *spec)
{
    struct data_sources data;
    if (spec->model.vocab_size > 0) return STATUS_OK;
    if (spec->run.data_train[0] == 0)
        return FAIL(STATUS_CONFIG,
                    "model.vocab_size is 0 and there is no data.train to take it from; set model.vocab_size");
    TRY(data_sources_open(&data, &spec->run));
    status st = loop_resolve_vocab(spec, &data);
    data_sources_close(&data);
    return st;
}

status cmd_plan(struct args *a)
{
    bool json = false;
    const char *machine = NULL;
    const struct flag flags[] = {FLAG("json", &json), FLAG("machine", &machine)};
    TRY(args_parse(a, flags, 2));
    if (a->help) return STATUS_OK;
    struct spec spec;
    TRY(cmd_load_spec(a, &spec));
    TRY(resolve_vocab(&spec));
    return machine ? mesh_plan_print(&spec, machine, json) : plan_print(&spec, json);
}

#include "train/rewind.h"
#include "base/log.h"
#include "observe/forks.h"

status rewind_plan(struct rewind *w, const char *run_dir, const struct lineage_order *o, bool resume,
                   int64_t resume_step)
{
    bool done = false;
    int64_t to = -1;
    *w = (struct rewind){.go_to = resume_step};
    if (!o->rewinds && !o->skip_from) return STATUS_OK;
    if (resume) TRY(lineage_target(run_dir, o, &to, &done));
    w->forks = !done;
    if (done) log_info("lineage   the newest checkpoint has gone back and left out what the command says");
    if (to >= 0) w->go_to = to;
    return STATUS_OK;
}

status rewind_apply(const struct rewind *w, struct trainer *t, const struct lineage_order *o, bool lead)
{
    const char *dir = t->spec.run.run_dir;
    if (!w->forks) return STATUS_OK;
    TRY(lineage_apply(&t->lineage, o, t->step, t->steps_total, lead ? forks_last_step(dir) : -1));
    if (!lead) return STATUS_OK;
    return forks_record(dir, &(struct fork_place){t->step, o->skip_from, o->skip_to, o->why});
}

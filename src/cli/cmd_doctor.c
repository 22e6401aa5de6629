/* ingot doctor: what may stop or slow a run on this host. */
#include "cli/cli.h"
#include "cli/print_json.h"
#include "comm/comm.h"
#include "doctor/doctor.h"

#include <stdio.h>
#include <stdlib.h>

struct order {
    bool full, accept, json, nagios, strict, fresh, selftest, checks, quick;
    const char *storage, *state;
};

static status show(const struct doctor *d, const struct order *o)
{
    char path[1024];
    if (o->json)
        print_json(doctor_json(d, o->strict));
    else
        doctor_print(d, stdout, true);
    if (o->accept) {
        TRY(doctor_certificate(d, path));
        if (!o->json) printf("certificate %s\n", path);
    }
    const status st = doctor_exit(d, o->strict);
    if (st == STATUS_OK) return STATUS_OK;
    return FAIL(st, "doctor: this host is not fit for a run; the lines above say why and what to do");
}

/* On one host; as one of several ranks, of which the first prints. */
static status examine(const struct order *o, struct doctor_how *how)
{
    struct comm_env env;
    struct doctor *d;
    int nagios = -1;
    TRY(comm_env_read(&env));
    TRY(comm_open(&how->comm, &env));
    status st = doctor_run(&d, how);
    if (st == STATUS_OK) {
        if (o->nagios && env.rank == 0)
            nagios = doctor_nagios(d, stdout);
        else if (env.rank == 0)
            st = show(d, o);
        doctor_close(d);
    }
    comm_close(how->comm, STATUS_OK);
    if (nagios >= 0) exit(nagios); /* the plug-in's codes are not ours */
    return st;
}

static status order_check(const struct order *o)
{
    if (o->quick + o->full + o->accept + o->selftest + o->checks > 1)
        return FAIL(STATUS_CONFIG, "doctor: one of --quick, --full, --accept, --selftest and --checks");
    if (o->nagios && (o->json || o->accept))
        return FAIL(STATUS_CONFIG, "doctor: --nagios prints one line; not with --json or --accept");
    if ((o->nagios || o->json) && (o->selftest || o->checks))
        return FAIL(STATUS_CONFIG,
                    "doctor: --selftest and --checks print a table; not with --json or --nagios");
    return STATUS_OK;
}

status cmd_doctor(struct args *a)
{
    struct order o = {0};
    const struct flag flags[] = {
        FLAG("quick", &o.quick),     FLAG("full", &o.full),     FLAG("accept", &o.accept),
        FLAG("storage", &o.storage), FLAG("state", &o.state),   FLAG("fresh", &o.fresh),
        FLAG("strict", &o.strict),   FLAG("nagios", &o.nagios), FLAG("selftest", &o.selftest),
        FLAG("checks", &o.checks),   FLAG("json", &o.json)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    TRY(order_check(&o));
    if (o.selftest) return doctor_selftest(stdout);
    if (o.checks) {
        doctor_print_checks(stdout);
        return STATUS_OK;
    }
    struct doctor_how how = {.level = o.accept ? DOCTOR_ACCEPT
                                      : o.full ? DOCTOR_FULL
                                               : DOCTOR_QUICK,
                             .storage = o.storage,
                             .state = o.state,
                             .fresh = o.fresh};
    return examine(&o, &how);
}

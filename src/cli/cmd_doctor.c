/* ingot doctor: what may stop or slow a run on this host. */
#include "cli/cli.h"
#include "cli/print_json.h"
#include "comm/comm.h"
#include "base/io.h"
#include "base/text.h"
#include "doctor/doctor.h"
#include "spec/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct order {
    bool full, accept, json, nagios, strict, fresh, selftest, checks, quick, net;
    const char *storage, *state, *baseline, *replay;
    double within; /* percent */
};

static status show(const struct doctor *d, const struct order *o)
{
    char path[1024];
    if (o->json)
        print_json(doctor_json(d, o->strict));
    else
        doctor_print(d, stdout, text_columns(STDOUT_FILENO, DOCTOR_COLUMNS), true);
    if (o->accept) {
        TRY(doctor_certificate(d, path));
        if (!o->json) printf("certificate %s\n", path);
    }
    const status st = doctor_exit(d, o->strict);
    if (st == STATUS_OK) return STATUS_OK;
    return FAIL(st, "doctor: this host is not fit for a run; the lines above say why and what to do");
}

static status judge(const struct doctor *d, const struct order *o, int *nagios)
{
    if (!o->nagios) return show(d, o);
    *nagios = doctor_nagios(d, stdout);
    return STATUS_OK;
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
        if (env.rank == 0) st = judge(d, o, &nagios);
        doctor_close(d);
    }
    comm_close(how->comm, STATUS_OK);
    if (nagios >= 0) exit(nagios); /* the plug-in's codes are not ours */
    return st;
}

/* What another host has told. */
static status replay(const struct order *o, const struct doctor_how *how)
{
    struct doctor *d;
    int nagios = -1;
    TRY(doctor_replay(&d, o->replay, how));
    const status st = judge(d, o, &nagios);
    doctor_close(d);
    if (nagios >= 0) exit(nagios);
    return st;
}

/* The directory in which the run's would be made, as far as it is there. */
static void place_of(const struct spec *spec, char *dir, size_t bytes)
{
    char above[SPEC_TEXT];
    bool there = false;
    snprintf(dir, bytes, "%s", spec->run.run_dir);
    while (io_exists(dir, &there) != STATUS_OK || !there) {
        text_parent(above, sizeof above, dir);
        if (strcmp(above, dir) == 0) return;
        snprintf(dir, bytes, "%s", above);
    }
}

static status order_check(const struct order *o)
{
    if (o->replay &&
        (o->quick + o->full + o->accept + o->selftest + o->checks + o->net || o->storage || o->state))
        return FAIL(STATUS_CONFIG, "doctor: --replay looks at no host: not with --quick, --full, --accept, "
                                   "--net, --storage, --state, --selftest or --checks");
    if (!(o->within > 0 && o->within < 100))
        return FAIL(STATUS_CONFIG, "doctor: --within is in percent, above 0 and below 100");
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
    struct order o = {.within = 10};
    struct spec spec;
    char place[SPEC_TEXT];
    const struct flag flags[] = {
        FLAG("quick", &o.quick),       FLAG("full", &o.full),     FLAG("accept", &o.accept),
        FLAG("storage", &o.storage),   FLAG("state", &o.state),   FLAG("fresh", &o.fresh),
        FLAG("strict", &o.strict),     FLAG("nagios", &o.nagios), FLAG("selftest", &o.selftest),
        FLAG("checks", &o.checks),     FLAG("json", &o.json),     FLAG("net", &o.net),
        FLAG("baseline", &o.baseline), FLAG("within", &o.within), FLAG("replay", &o.replay)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    TRY(order_check(&o));
    const bool run = a->word_count + a->key_count > 0;
    if (run && (o.selftest || o.checks || o.replay))
        return FAIL(STATUS_CONFIG, "doctor: --selftest, --checks and --replay take no run");
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
                             .fresh = o.fresh,
                             .net = o.net,
                             .baseline = o.baseline,
                             .within = o.within / 100};
    if (o.replay) return replay(&o, &how);
    if (run) TRY(cmd_load_spec(a, LOAD_PLAN, &spec, NULL));
    if (run && spec.model.vocab_size == 0 && cmd_plan_data(&spec, true) != STATUS_OK)
        spec.model.vocab_size = 0; /* run_data says why */
    if (run && how.storage == NULL) {
        place_of(&spec, place, sizeof place);
        how.storage = place;
    }
    how.spec = run ? &spec : NULL;
    return examine(&o, &how);
}

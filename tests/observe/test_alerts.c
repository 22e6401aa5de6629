/* The rules of alerts on made-up runs: recorded failures, each with the sentence that it must give, and 10,000 sound steps, which must give
 * none. A clock of its own: an hour takes milliseconds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "observe/alert_rules.h"
#include "temp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEGIN 1.8e9
enum { RANKS = 4, SAID_MAX = 64 };

/* What goes wrong from a second on; 0, NULL: nothing of the kind. */
struct fault {
    double at_s, for_s;        /* for_s 0: to the end */
    int steps;                 /* of it that are wrong; 0: all */
    double loss, grad;         /* added */
    double work;               /* factor of the compute of `rank` */
    double data_s;             /* of each step of `rank` */
    double save_s, cpu;        /* of rank 0's steps; factor of the CPU time of `rank` */
    int rank;                  /* that it happens to; -1: all */
    double silent_s;           /* one step lasts so long */
    enum alert_work work_kind; /* that it lasts in; OTHER: STEP */
    double paused_s;           /* nothing runs for so long */
    int awaited;               /* 1 + the rank that the others wait for meanwhile */
    const char *gpu;           /* further values of gpu2's lines */
    const char *line;          /* a further line of the host's record */
    double disk;               /* free bytes */
    status end;                /* how it ends */
};
struct sim {
    int wrong_steps;
    bool heavy; /* noise with heavy tails, and two sources of data */
    struct alert_rules *rules;
    struct alert_place places[RANKS];
    struct alert said[SAID_MAX];
    int count, awaited;
    double now;
    uint64_t random;
};

static double uniform(struct sim *s)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return ((double)(s->random >> 11) + 0.5) / 9007199254740992.0;
}
static double normal(struct sim *s)
{
    return sqrt(-2 * log(uniform(s))) * cos(6.283185307179586 * uniform(s));
}

/* Heavy: Student's t of five degrees of freedom, and a second source that lies two of its widths higher. */
static double noise(struct sim *s)
{
    double squares = 0;
    if (!s->heavy) return normal(s);
    for (int i = 0; i < 5; i++) {
        const double u = normal(s);
        squares += u * u;
    }
    return normal(s) / sqrt(squares / 5) + (uniform(s) < 0.1 ? 2 : 0);
}

static void emit(void *ctx, const struct alert *a)
{
    struct sim *s = ctx;
    assert_true(s->count < SAID_MAX);
    s->said[s->count++] = *a;
}
static int awaited(void *ctx)
{
    return ((struct sim *)ctx)->awaited - 1;
}

static void open_sim(struct sim *s, int ranks, bool waits)
{
    memset(s, 0, sizeof *s);
    s->now = BEGIN;
    s->random = 5;
    for (int i = 0; i < RANKS; i++) {
        s->places[i] = (struct alert_place){.pid = 4711 + i, .gpu = -1};
        snprintf(s->places[i].host, sizeof s->places[i].host, "node07");
        snprintf(s->places[i].pci, sizeof s->places[i].pci, "0000:1%d:00.0", i);
    }
    s->rules = alert_rules_open(&(struct alert_setup){.ranks = ranks,
                                                      .places = s->places,
                                                      .waits = waits,
                                                      .start_s = BEGIN,
                                                      .warmup = 50,
                                                      .checkpoint_bytes = 12e9,
                                                      .emit = emit,
                                                      .emit_ctx = s,
                                                      .awaited = awaited,
                                                      .awaited_ctx = s});
}

/* The end of a host's record, as host_record writes it. */
static void write_host(const struct sim *s, const struct fault *f, bool wrong)
{
    FILE *out = fopen(temp_path("gpu-node07.jsonl"), "we");
    assert_non_null(out);
    for (double t = s->now - 100; t <= s->now; t += 10)
        for (int g = 0; g < RANKS; g++)
            fprintf(out,
                    "{\"kind\":\"gpu\",\"time\":%.3f,\"gpu\":%d,\"uuid\":\"GPU-%d\",\"pci\":\"00000000:1%d:"
                    "00.0\","
                    "\"links_active\":18,\"link_errors\":3,\"ecc_uncorrected\":0,\"power_cap_s\":9%s}\n",
                    t, g, g, g, g == 2 && wrong && f->gpu ? f->gpu : ",\"sm_mhz\":1485");
    if (wrong && f->line) fprintf(out, f->line, s->now);
    fclose(out);
}

static void look_hosts(struct sim *s, const struct fault *f, bool wrong)
{
    struct host_lines *hosts;
    if (f->gpu || f->line) write_host(s, f, wrong);
    const int count = f->gpu || f->line ? host_lines_read(temp_dir, &hosts) : 0;
    alert_rules_hosts(s->rules, s->now, count ? hosts : NULL, count, wrong && f->disk > 0 ? f->disk : 1e12);
    if (count) free(hosts);
}

/* Looks once a second while a step lasts. */
static void pass_time(struct sim *s, double seconds, enum alert_work work)
{
    const double end = s->now + seconds;
    while (s->now + 1 < end) alert_rules_look(s->rules, s->now += 1, work);
    s->now = end;
}

/* A run of `steps` steps of half a second. */
static void simulate(struct sim *s, const struct fault *f, int ranks, int64_t steps)
{
    double next_look = BEGIN, next_hosts = BEGIN + 10;
    bool silent = false;
    for (int64_t i = 1; i <= steps; i++) {
        const double age = s->now - BEGIN;
        const bool wrong = f->at_s > 0 && age >= f->at_s && (f->for_s <= 0 || age < f->at_s + f->for_s) &&
                           (f->steps == 0 || s->wrong_steps < f->steps);
        s->wrong_steps += wrong;
        struct rank_time t[RANKS];
        double longest = 0, work[RANKS], data[RANKS];
        for (int r = 0; r < ranks; r++) {
            const bool mine = wrong && (f->rank == r || f->rank < 0);
            data[r] = mine ? f->data_s : 0;
            work[r] = 0.45 * (1 + 0.01 * normal(s)) * (mine && f->work > 0 ? f->work : 1) + data[r] +
                      (wrong && r == 0 ? f->save_s : 0);
            longest = fmax(longest, work[r]);
            t[r].cpu_s = 1.9 * (mine && f->cpu > 0 ? f->cpu : 1) * 0.45;
        }
        double step = longest + 0.05 * uniform(s);
        if (wrong && f->silent_s > 0 && !silent) {
            silent = true;
            s->awaited = f->awaited;
            const enum alert_work kind = f->work_kind ? f->work_kind : ALERT_WORK_STEP;
            alert_rules_look(s->rules, s->now, kind);
            pass_time(s, f->silent_s, kind);
            step = f->silent_s;
            work[f->awaited ? f->awaited - 1 : 0] = longest = step;
            if (kind == ALERT_WORK_DATA) data[0] = step;
        } else
            s->now += step;
        if (wrong && f->paused_s > 0 && !silent) {
            silent = true;
            s->now += f->paused_s;
        }
        for (int r = 0; r < ranks; r++) {
            t[r].work_s = work[r];
            t[r].wait_s = fmax(step - work[r], 0);
            t[r].data_s = data[r];
        }
        const double age_steps = (double)i;
        alert_rules_step(s->rules,
                         &(struct alert_step){.step = i,
                                              .time = s->now,
                                              .loss = 3 + 4 * exp(-age_steps / 300) + 0.04 * noise(s) +
                                                      (wrong ? f->loss : 0),
                                              .grad_norm = 0.4 * exp(0.15 * noise(s)) + (wrong ? f->grad : 0),
                                              .step_s = step,
                                              .save_s = wrong ? f->save_s : NAN,
                                              .rank = t});
        if (s->now >= next_look) alert_rules_look(s->rules, s->now, ALERT_WORK_STEP), next_look = s->now + 1;
        if (s->now >= next_hosts) look_hosts(s, f, wrong), next_hosts = s->now + 10;
        if (i % 4000 == 0) { /* an evaluation */
            alert_rules_look(s->rules, s->now, ALERT_WORK_OTHER);
            pass_time(s, 90, ALERT_WORK_OTHER);
        }
    }
}

static const struct alert *said(const struct sim *s, const char *name, bool over)
{
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->said[i].name, name) == 0 && s->said[i].over == over) return &s->said[i];
    return NULL;
}

struct row {
    const char *what;
    int ranks;
    struct fault f;
    const char *name;
    int rank; /* that the alert names; -1: none */
    status code;
    bool once;           /* it is over when it is said */
    const char *text[3]; /* that its sentence holds; "$" stands for this process's number */
};
#define GPU(values)  .gpu = ",\"sm_mhz\":" values
#define LINE(values) .line = "{\"kind\":" values "}\n"
static const struct row rows[] = {
    {"loss spike",
     1,
     {.at_s = 300, .for_s = 3, .loss = 2},
     "loss_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"loss up to 5.", "z ", "ingot data inspect RUN --step "}},
    {"small loss spike",
     1,
     {.at_s = 300, .for_s = 2, .loss = 0.8},
     "loss_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"median 3.", "of 128 steps"}},
    {"loss spike of one step",
     1,
     {.at_s = 300, .steps = 1, .loss = 2},
     "loss_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"loss up to 5.", "z ", "ingot data inspect RUN --step "}},
    {"loss spike of two steps",
     4,
     {.at_s = 300, .steps = 2, .loss = 1.1},
     "loss_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"loss up to 4.", "z "}},
    {"gradient spike of one step",
     1,
     {.at_s = 300, .steps = 1, .grad = 7},
     "grad_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"gradient norm up to 7."}},
    {"gradient spike of two steps",
     1,
     {.at_s = 300, .steps = 2, .grad = 1.6},
     "grad_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"gradient norm up to "}},
    {"loss that stays", 1, {.at_s = 400, .loss = 3}, "loss_spike", -1, STATUS_NUMERIC, false, {"z "}},
    {"gradient spike",
     1,
     {.at_s = 300, .for_s = 2, .grad = 9},
     "grad_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"gradient norm up to ", "shows its texts"}},
    {"gradient spike on 4 ranks",
     4,
     {.at_s = 250, .for_s = 2, .grad = 3},
     "grad_spike",
     -1,
     STATUS_NUMERIC,
     false,
     {"gradient norm up to 3."}},
    {"compute slows",
     1,
     {.at_s = 200, .work = 1.4, .cpu = 1.4},
     "slow",
     0,
     STATUS_OK,
     false,
     {"costs 2", "rank 0 on node07", "no other cause"}},
    {"cores taken",
     1,
     {.at_s = 200, .work = 1.5, .cpu = 0.5},
     "slow",
     0,
     STATUS_OK,
     false,
     {"rank 0 on node07", "cores, usual are", "others use its cores"}},
    {"data slow, one rank",
     1,
     {.at_s = 200, .data_s = 0.2},
     "slow",
     0,
     STATUS_OK,
     false,
     {"waits 200 ms per step for its data"}},
    {"saves stall",
     1,
     {.at_s = 200, .save_s = 0.3, .rank = 2},
     "slow",
     0,
     STATUS_OK,
     false,
     {"for the write of a checkpoint"}},
    {"another rank slows all",
     4,
     {.at_s = 200, .work = 1.5, .cpu = 1.5, .rank = 2},
     "slow",
     2,
     STATUS_OK,
     false,
     {"all wait for rank 2 on node07"}},
    {"all ranks slow",
     4,
     {.at_s = 200, .work = 1.3, .cpu = 0.6, .rank = -1},
     "slow",
     0,
     STATUS_OK,
     false,
     {"cores, usual are"}},
    {"a little data wait",
     1,
     {.at_s = 200, .data_s = 0.012},
     "data_wait",
     0,
     STATUS_OK,
     false,
     {"rank 0 on node07 waits for its data", "data.threads"}},
    {"data wait of 4 ranks",
     4,
     {.at_s = 200, .data_s = 0.02, .rank = -1},
     "data_wait",
     0,
     STATUS_OK,
     false,
     {"of the last minute"}},
    {"slow rank",
     4,
     {.at_s = 200, .work = 1.2, .cpu = 1.2, .rank = 2},
     "slow_rank",
     2,
     STATUS_OK,
     false,
     {"rank 2 on node07 works", "they wait for it", "costs up to 1"}},
    {"slow rank of two",
     2,
     {.at_s = 200, .work = 1.3, .cpu = 1.3, .rank = 1},
     "slow_rank",
     1,
     STATUS_OK,
     false,
     {"rank 1 on node07 works"}},
    {"rank 0 is slow",
     4,
     {.at_s = 200, .work = 1.2, .cpu = 1.2, .rank = 0},
     "slow_rank",
     0,
     STATUS_OK,
     false,
     {"rank 0 on node07 works"}},
    {"slow rank by its data",
     4,
     {.at_s = 200, .data_s = 0.15, .rank = 3},
     "slow_rank",
     3,
     STATUS_OK,
     false,
     {"rank 3 on node07", "for its data"}},
    {"slow rank by its cores",
     4,
     {.at_s = 200, .work = 1.5, .cpu = 0.4, .rank = 1},
     "slow_rank",
     1,
     STATUS_OK,
     false,
     {"rank 1 on node07", "others use its cores"}},
    {"slow rank by heat",
     4,
     {.at_s = 200, .work = 1.16, .rank = 2, GPU("1280,\"hw_thermal_s\":4")},
     "slow_rank",
     2,
     STATUS_OK,
     false,
     {"rank 2 on node07, gpu2", "gpu2: rank 2:", "heat or power brake"}},
    {"one long step",
     1,
     {.at_s = 200, .silent_s = 12},
     "long_step",
     0,
     STATUS_OK,
     true,
     {"took 12.0 s", "rank 0 on node07"}},
    {"one long step of another rank",
     4,
     {.at_s = 200, .silent_s = 12, .awaited = 4},
     "long_step",
     3,
     STATUS_OK,
     true,
     {"took 12.0 s", "rank 3 on node07", "cores, usual are"}},
    {"one long wait for data",
     1,
     {.at_s = 200, .silent_s = 20, .work_kind = ALERT_WORK_DATA},
     "long_step",
     0,
     STATUS_OK,
     true,
     {"for its data"}},
    {"no step",
     1,
     {.at_s = 200, .silent_s = 300},
     "stall",
     0,
     STATUS_COMM,
     false,
     {"no step for 3", "rank 0 on node07", "its process $ "}},
    {"no data",
     1,
     {.at_s = 200, .silent_s = 300, .work_kind = ALERT_WORK_DATA},
     "stall",
     0,
     STATUS_COMM,
     false,
     {"it waits for its data", "data.train"}},
    {"no save",
     1,
     {.at_s = 200, .silent_s = 300, .work_kind = ALERT_WORK_SAVE},
     "stall",
     0,
     STATUS_COMM,
     false,
     {"it writes a checkpoint", "full disk"}},
    {"a rank does not come",
     4,
     {.at_s = 200, .silent_s = 300, .awaited = 3},
     "stall",
     2,
     STATUS_COMM,
     false,
     {"all wait for rank 2 on node07"}},
    {"rank 0 does not come",
     4,
     {.at_s = 200, .silent_s = 300, .awaited = 1},
     "stall",
     0,
     STATUS_COMM,
     false,
     {"rank 0 on node07: its process"}},
    {"stopped and continued",
     1,
     {.at_s = 200, .paused_s = 100},
     "pause",
     -2,
     STATUS_OK,
     true,
     {"rank 0 on node07", "did not run for 1 min 4"}},
    {"heat",
     4,
     {.at_s = 200, GPU("1485,\"hw_thermal_s\":4")},
     "throttle",
     2,
     STATUS_DEVICE,
     false,
     {"rank 2:", "heat or power brake"}},
    {"power brake, and slower",
     4,
     {.at_s = 200, GPU("1400,\"power_brake_s\":4")},
     "throttle",
     2,
     STATUS_DEVICE,
     false,
     {"rank 2:", "costs up to 6 %"}},
    {"software heat",
     4,
     {.at_s = 200, GPU("1485,\"sw_thermal_s\":4")},
     "throttle",
     2,
     STATUS_DEVICE,
     false,
     {"rank 2:"}},
    {"low clock",
     4,
     {.at_s = 200, GPU("1200")},
     "straggler",
     2,
     STATUS_DEVICE,
     false,
     {"rank 2:", "1200 MHz", "costs up to 19 %"}},
    {"ECC",
     4,
     {.at_s = 200, LINE("\"gpu\",\"time\":%.3f,\"gpu\":1,\"ecc_uncorrected\":1")},
     "ecc",
     1,
     STATUS_DEVICE,
     false,
     {"rank 1: 1 uncorrectable"}},
    {"row waits",
     4,
     {.at_s = 200, GPU("1485,\"rows_pending\":1")},
     "rows",
     2,
     STATUS_DEVICE,
     false,
     {"rank 2:", "waits for a reset"}},
    {"row failed",
     4,
     {.at_s = 200, GPU("1485,\"rows_failed\":1")},
     "rows",
     2,
     STATUS_DEVICE,
     false,
     {"rank 2:", "could not be remapped"}},
    {"NVLink down",
     4,
     {.at_s = 200, LINE("\"gpu\",\"time\":%.3f,\"gpu\":3,\"links_active\":17")},
     "link",
     3,
     STATUS_DEVICE,
     false,
     {"rank 3: 17 of 18"}},
    {"NVLink errors",
     4,
     {.at_s = 200, LINE("\"gpu\",\"time\":%.3f,\"gpu\":0,\"link_errors\":9")},
     "link_errors",
     0,
     STATUS_OK,
     false,
     {"rank 0: 6 NVLink errors"}},
    {"GPU gone",
     4,
     {.at_s = 200, LINE("\"gpu\",\"time\":%.3f,\"gpu\":1,\"nvml_error\":15")},
     "lost",
     1,
     STATUS_DEVICE,
     false,
     {"rank 1: does not answer"}},
    {"Xid 79",
     4,
     {.at_s = 200, .for_s = 10, LINE("\"xid\",\"time\":%.3f,\"gpu\":1,\"xid\":79")},
     "xid",
     1,
     STATUS_DEVICE,
     false,
     {"rank 1: Xid 79", "fallen off the bus", "restart the host"}},
    {"Xid 31",
     4,
     {.at_s = 200, .for_s = 10, LINE("\"xid\",\"time\":%.3f,\"gpu\":0,\"xid\":31")},
     "xid",
     0,
     STATUS_DEVICE,
     false,
     {"rank 0: Xid 31", "page fault"}},
    {"unknown Xid",
     4,
     {.at_s = 200, .for_s = 10, LINE("\"xid\",\"time\":%.3f,\"gpu\":0,\"xid\":999")},
     "xid",
     0,
     STATUS_DEVICE,
     false,
     {"Xid 999, no entry"}},
    {"disk nearly full",
     1,
     {.at_s = 200, .disk = 2e10},
     "disk",
     -1,
     STATUS_IO,
     false,
     {"18.63 GiB are free", "a checkpoint needs 11.18 GiB"}},
    {"disk full", 4, {.at_s = 200, .disk = 1}, "disk", -1, STATUS_IO, false, {"1 B are free", "ckpt.keep"}},
    {"a rank is lost",
     4,
     {.end = STATUS_COMM},
     "ended",
     -1,
     STATUS_COMM,
     false,
     {"code 10 after step 1200", "the message", "a resume repeats 7 steps, 3.50 s"}},
    {"not finite",
     1,
     {.end = STATUS_NUMERIC},
     "ended",
     -1,
     STATUS_NUMERIC,
     false,
     {"code 6 after step 1200", "the message"}},
};

static void check_text(const struct row *r, const struct alert *a)
{
    char want[128];
    for (int k = 0; k < 3 && r->text[k]; k++) {
        const char *pid = strchr(r->text[k], '$');
        if (pid) /* process 4711 may exist here: its state does not matter */
            snprintf(want, sizeof want, "%.*s4711%s", (int)(pid - r->text[k]), r->text[k], pid + 1);
        else
            snprintf(want, sizeof want, "%s", r->text[k]);
        if (strstr(a->text, want) == NULL) fail_msg("%s: '%s' is not in: %s", r->what, want, a->text);
    }
}

static void test_failures(void **state)
{
    (void)state;
    static struct sim s;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        temp_clear();
        open_sim(&s, r->ranks, true);
        simulate(&s, &r->f, r->ranks, 1200);
        const int before_end = s.count;
        alert_rules_end(s.rules, s.now, r->f.end, "the message", 7, 3.5);
        const struct alert *a = said(&s, r->name, r->once);
        if (a == NULL)
            fail_msg("%s: %d alerts, no '%s'; the first is %s: %s", r->what, s.count, r->name, s.said[0].name,
                     s.said[0].text);
        if (r->rank > -2 && a->rank != r->rank)
            fail_msg("%s: rank %d, not %d: %s", r->what, a->rank, r->rank, a->text);
        if (a->code != r->code) fail_msg("%s: code %d", r->what, (int)a->code);
        check_text(r, a);
        if (getenv("SHOW"))
            printf("%-28s %s%s%s: %s\n", r->what, a->name, a->where[0] ? " " : "", a->where, a->text);
        for (int k = 0; k < before_end; k++) assert_true(s.said[k].time >= BEGIN + r->f.at_s);
        /* each that was on is over, with a price where time was lost */
        for (int k = 0; k < s.count; k++) {
            const struct alert *on = &s.said[k];
            if (on->over || strcmp(on->name, "xid") == 0 || strcmp(on->name, "ended") == 0) continue;
            bool over = false;
            for (int n = k + 1; n < s.count; n++)
                over = over || (s.said[n].over && strcmp(s.said[n].name, on->name) == 0 &&
                                strcmp(s.said[n].where, on->where) == 0);
            if (!over) fail_msg("%s: %s is never over", r->what, on->name);
        }
        alert_rules_close(s.rules);
    }
    assert_true(sizeof rows / sizeof rows[0] >= 40);
}

/* What a stall and a slow phase have cost. */
static void test_price(void **state)
{
    (void)state;
    static struct sim s;
    open_sim(&s, 1, true);
    simulate(&s, &(struct fault){.at_s = 200, .silent_s = 300}, 1, 1200);
    const struct alert *a = said(&s, "stall", true);
    assert_non_null(a);
    assert_true(fabs(a->seconds - 299.5) < 33 && a->share > 0.2 && a->code == STATUS_OK);
    assert_non_null(strstr(a->text, "over after 5 min"));
    alert_rules_close(s.rules);
    open_sim(&s, 1, true);
    simulate(&s, &(struct fault){.at_s = 200, .for_s = 200, .work = 1.5, .cpu = 1.5}, 1, 1200);
    a = said(&s, "slow", true);
    assert_non_null(a);
    if (!(fabs(a->seconds - 65) < 10)) fail_msg("%g s: %s", a->seconds, a->text);
    alert_rules_close(s.rules);
}

static void test_sound(void **state)
{
    (void)state;
    static struct sim s;
    static const struct fault none = {.gpu = NULL};
    for (int i = 1; i <= 2 * RANKS; i *= 2) {
        const int ranks = i > RANKS ? 1 : i;
        open_sim(&s, ranks, true);
        s.heavy = i > RANKS;
        simulate(&s, &none, ranks, 10000);
        alert_rules_end(s.rules, s.now, STATUS_OK, "finished", 0, 0);
        if (s.count) fail_msg("%d ranks: %s: %s", ranks, s.said[0].name, s.said[0].text);
        alert_rules_close(s.rules);
    }
}

/* A line has milliseconds, rounded: an Xid right behind the start may lie in front of it. An older one is another run's. */
static void test_xid_at_the_start(void **state)
{
    (void)state;
    static struct sim s;
    static struct host_lines host = {.host = "node07", .xids = 1};
    for (int late = 0; late < 2; late++) {
        open_sim(&s, 1, true);
        host.xid[0] = (struct xid_line){BEGIN - (late ? 4e-4 : 0.1), 0, 31};
        alert_rules_hosts(s.rules, s.now, &host, 1, 1e12);
        assert_int_equal(said(&s, "xid", false) != NULL, late);
        alert_rules_close(s.rules);
    }
}

static void steps_of(struct sim *s, int64_t from, int64_t to, double loss)
{
    static const struct rank_time t[1] = {{.work_s = 0.5, .cpu_s = 1}};
    for (int64_t i = from; i <= to; i++)
        alert_rules_step(s->rules, &(struct alert_step){.step = i,
                                                        .time = s->now += 0.5,
                                                        .loss = loss + 0.04 * normal(s),
                                                        .grad_norm = 0.4 * exp(0.15 * normal(s)),
                                                        .step_s = 0.5,
                                                        .save_s = NAN,
                                                        .rank = t});
}

/* One norm that is six times the usual: a document, no spike. */
static void test_norm_of_one(void **state)
{
    (void)state;
    static struct sim s;
    for (int times = 6; times <= 12; times += 6) {
        open_sim(&s, 1, true);
        simulate(&s, &(struct fault){.at_s = 300, .steps = 1, .grad = 0.4 * times}, 1, 1200);
        assert_int_equal(said(&s, "grad_spike", false) != NULL, times == 12);
        alert_rules_close(s.rules);
    }
}

/* Back in place: the spike is over with that word, its values do not count, and the next spike is seen. */
static void test_back(void **state)
{
    (void)state;
    static struct sim s;
    open_sim(&s, 1, true);
    steps_of(&s, 1, 400, 3);
    steps_of(&s, 401, 410, 5);
    const struct alert *on = said(&s, "loss_spike", false);
    if (on == NULL || on->step != 401) fail_msg("%d alerts", s.count);
    steps_of(&s, 381, 400, 3);
    const struct alert *over = said(&s, "loss_spike", true);
    if (over == NULL || strstr(over->text, "the run went back to step 380: loss up to 5.") == NULL)
        fail_msg("%d alerts; %s", s.count, over ? over->text : "none is over");
    assert_int_equal(s.count, 2);
    steps_of(&s, 401, 500, 3); /* the same steps, without the data */
    assert_int_equal(s.count, 2);
    steps_of(&s, 501, 501, 5);
    assert_int_equal(s.count, 3);
    assert_int_equal(s.said[2].step, 501);
    assert_non_null(strstr(s.said[2].text, "median 3"));
    /* back with a spike that is over, and to the begin: nothing is said */
    steps_of(&s, 502, 502, 3);
    assert_int_equal(s.count, 4);
    steps_of(&s, 1, 300, 4);
    assert_int_equal(s.count, 4);
    alert_rules_close(s.rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failures),    cmocka_unit_test(test_price),
        cmocka_unit_test(test_sound),       cmocka_unit_test(test_back),
        cmocka_unit_test(test_norm_of_one), cmocka_unit_test(test_xid_at_the_start)};
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}

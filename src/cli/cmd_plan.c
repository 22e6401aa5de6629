/* ingot plan: memory, FLOPs, time and, for a named machine, meshes, without running anything. */
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/text.h"
#include "bench/calibrate.h"
#include "cli/cli.h"
#include "cli/plan_run.h"
#include "observe/progress.h"
#include "plan/assume.h"
#include "plan/mesh_plan.h"
#include "plan/past_errors.h"
#include "plan/predict.h"
#include "train/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 1 << 20 }; /* of a plan, while it is made */

/* The shards that the run names: what the plan needs of them, and a word where they are not there. */
status cmd_plan_data(struct spec *spec, bool quiet)
{
    struct data_sources data;
    char tokens[32];
    if (spec->run.data_train[0] == 0 && spec->model.vocab_size > 0) return STATUS_OK;
    if (spec->run.data_train[0] == 0)
        return FAIL(STATUS_CONFIG,
                    "model.vocab_size is 0 and there is no data.train to take it from; set model.vocab_size");
    status st = data_sources_open(&data, &spec->run);
    if (st == STATUS_OUT_OF_MEMORY) return st;
    if (st != STATUS_OK && spec->model.vocab_size == 0)
        return status_wrap(st, "model.vocab_size is 0 and data.train cannot tell it");
    if (st != STATUS_OK) {
        log_warn("data.train: %s; the plan needs no data, the run does", status_message());
        return STATUS_OK;
    }
    st = loop_resolve_vocab(spec, &data);
    int64_t count = 0;
    for (int i = 0; i < data.sources->count; i++) count += data.sets[i].tokens;
    data_sources_close(&data);
    TRY(st);
    const double run = spec_token_count(spec);
    if (quiet || count == 0) return STATUS_OK;
    printf("data         %s tokens", text_count(tokens, (double)count));
    if (spec->run.train_steps != SPEC_ENDLESS) printf(": the run reads them %.3g times", run / (double)count);
    printf("\n");
    return STATUS_OK;
}

/* The words and keys as a shell reads them back, each with a blank before it. */
static char *quoted(const struct args *a)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=:,@%+-";
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = memory_stream(&text, &bytes);
    for (int i = 0; i < a->word_count + a->key_count; i++) {
        const char *word = i < a->word_count ? a->words[i] : a->keys[i - a->word_count];
        const bool bare = word[strspn(word, plain)] == 0;
        fprintf(f, bare ? " " : " '");
        for (const char *c = word; *c; c++) fprintf(f, *c == '\'' ? "'\\''" : "%c", *c);
        if (!bare) fputc('\'', f);
    }
    memory_stream_close(f);
    return text;
}

static status print_plan(const struct spec *spec, const char *machine, const struct plan_command *command,
                         bool json)
{
    struct prediction p;
    if (machine) return mesh_plan_print(spec, machine, command, json);
    TRY(predict_here(spec, &p));
    return plan_print(
        spec,
        &(struct plan_outlook){
            .step = p.step, .from = p.from, .why = p.why, .machine = p.machine, .command = *command},
        json);
}

/* Of all keys, those that say what is measured. */
static status calibrate(const struct args *a, const char *path, const char *machine)
{
    struct run_spec run;
    int64_t threads = 0;
    run_spec_default(&run);
    for (int i = 0; i < a->key_count; i++) {
        const char *key = a->keys[i] + strspn(a->keys[i], "-"), *value = strchr(key, '=');
        value = value ? value + 1 : "";
        if (strncmp(key, "machine.threads=", 16) == 0 && text_to_int(value, &threads) && threads >= 1 &&
            threads <= 4096)
            continue;
        if (strcmp(key, "machine.device=cpu") == 0) {
            run.machine_device = DEVICE_CPU;
            continue;
        }
        if (strcmp(key, "machine.device=cuda") == 0) {
            run.machine_device = DEVICE_CUDA;
            continue;
        }
        return FAIL(
            STATUS_CONFIG,
            "plan: --calibrate measures the machine: of all keys it takes machine.device=cpu or cuda, and "
            "machine.threads=N, not %s",
            a->keys[i]);
    }
    TRY(args_words(a, 0, 0));
    parallel_threads_set((int)threads);
    const struct spec s = {.run = run};
    return calibrate_machine(
        &(struct calibrate_machine){.path = path, .machine = machine, .device = plan_device(&s)});
}

/* A terminal sees that a search of thousands of meshes goes on. The plan's text waits in the buffer of stdout until then. */
static char *display_open(void)
{
    char *text = isatty(STDERR_FILENO) ? malloc(TEXT_BYTES) : NULL;
    if (text == NULL) return NULL;
    setvbuf(stdout, text, _IOFBF, TEXT_BYTES);
    progress_start();
    progress_begin(WORK_OTHER, "planning", 0);
    return text;
}

static void display_close(char *text)
{
    if (text == NULL) return;
    progress_end();
    progress_stop();
    fflush(stdout);
    setvbuf(stdout, NULL, _IOLBF, 0);
    free(text);
}

status cmd_plan(struct args *a)
{
    bool json = false;
    const char *machine = NULL, *assumed = NULL, *measured = NULL, *earlier = NULL;
    struct plan_run run = plan_run_default();
    const struct flag flags[] = {FLAG("json", &json),      FLAG("machine", &machine),
                                 FLAG("assume", &assumed), FLAG("calibrate", &measured),
                                 FLAG("past", &earlier),   PLAN_RUN_FLAGS(&run)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    if (measured && (json || assumed || earlier || run.predicted || plan_run_asked(&run)))
        return FAIL(STATUS_CONFIG,
                    "plan: --calibrate measures, and plans nothing: without other options than --machine");
    if (measured) return calibrate(a, measured, machine);
    struct assume assume = assume_default();
    if (assumed && machine == NULL && run.compare == NULL)
        return FAIL(STATUS_CONFIG, "plan: --assume needs a machine, such as --machine 64xH100");
    if (assumed) TRY(assume_read(assumed, &assume));
    TRY(plan_run_check(&run, machine));
    struct spec spec;
    struct spec_origin *origin;
    TRY(cmd_load_spec(a, LOAD_PLAN, &spec, &origin));
    const bool micro_batch = spec_origin_given(origin, "train", "micro_batch"),
               recompute = spec_origin_given(origin, "train", "recompute");
    spec_origin_free(origin);
    TRY(cmd_plan_data(&spec, json));
    struct past_errors past;
    const status read = past_errors_read(earlier, &past);
    if (read != STATUS_OK) return status_wrap(read, "plan");
    const struct plan_command command = {.words = quoted(a),
                                         .micro_batch = micro_batch,
                                         .recompute = recompute,
                                         .predicted = run.predicted,
                                         .assume = &assume,
                                         .past = &past};
    char *text = display_open();
    status st = plan_run_asked(&run) ? plan_run_print(&run, &spec, machine, &command, json)
                                     : print_plan(&spec, machine, &command, json);
    display_close(text);
    free(command.words);
    past_errors_free(&past);
    return st;
}

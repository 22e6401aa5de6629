/* Where a run came from and what to do with it: command, git state, data and tokenizer (env.json); the commands that
 * come next, each with a button that copies it. */
#include "observe/report_int.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_copy(FILE *out)
{
    fprintf(out, "<button class=copy type=button>copy</button></div>\n");
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static void put_command(FILE *out, const char *what, const char *command)
{
    if (command[0] == 0) return;
    fprintf(out, "<div class=command><span>%s</span><code>", what);
    report_put_text(out, command);
    fprintf(out, "</code>");
    put_copy(out);
}

static void put_time(FILE *out, const char *what, const char *iso)
{
    char buf[64];
    if (iso[0] == 0) return;
    fprintf(out, "<tr><td>%s<td>", what);
    report_put_text(out, report_time_text(buf, iso));
    fprintf(out, "\n");
}

static void put_worktree(FILE *out, const struct report_data *d)
{
    const json_t *tree = json_object_get(d->env, "worktree");
    if (!json_is_object(tree)) return;
    fprintf(out, "<tr><td>git<td>");
    const char *commit = text_of(tree, "commit");
    char start[16];
    snprintf(start, sizeof start, "%.12s", commit);
    report_put_text(out, start);
    if (text_of(tree, "branch")[0]) {
        fprintf(out, " on ");
        report_put_text(out, text_of(tree, "branch"));
    }
    fprintf(out, json_is_true(json_object_get(tree, "dirty")) ? ", with uncommitted changes\n" : ", clean\n");
}

static void put_tokenizer(FILE *out, const json_t *data)
{
    const char *dir = text_of(data, "tokenizer"), *hash = text_of(data, "tokenizer_sha256");
    const json_int_t size = json_integer_value(json_object_get(data, "vocab_size"));
    if (dir[0] == 0 && hash[0] == 0 && size == 0) return;
    fprintf(out, "<tr><td>tokenizer<td>");
    report_put_text(out, dir);
    if (size > 0) fprintf(out, "%s%lld token ids", dir[0] ? ", " : "", (long long)size);
    if (hash[0]) {
        char start[16];
        snprintf(start, sizeof start, "%.12s", hash);
        fprintf(out, ", sha256 ");
        report_put_text(out, start);
    }
    fprintf(out, "\n");
}

/* A row per source: tokens, its share of the run, how often it was read so far. */
static void put_source(FILE *out, const struct report_data *d, const json_t *source, bool alone)
{
    char buf[32], key[256];
    const json_t *tokens = json_object_get(source, "tokens");
    fprintf(out, "<tr><td>%s<td>", alone ? "training data" : "source");
    report_put_text(out, text_of(source, "name"));
    if (json_is_integer(tokens)) fprintf(out, ": %s tokens", text_count(buf, json_number_value(tokens)));
    if (!alone)
        fprintf(out, ", %.4g %% of the run", 100 * json_number_value(json_object_get(source, "share")));
    snprintf(key, sizeof key, "epochs.%s", text_of(source, "name"));
    const double epochs = report_data_fact(d, key);
    if (!isnan(epochs)) fprintf(out, ", %.3g epochs", epochs);
    fprintf(out, " <small>");
    report_put_text(out, text_of(source, "path"));
    fprintf(out, "</small>\n");
}

static void put_data(FILE *out, const struct report_data *d)
{
    char buf[32];
    const json_t *data = json_object_get(d->env, "data"), *train = json_object_get(data, "train");
    for (size_t i = 0; i < json_array_size(train); i++)
        put_source(out, d, json_array_get(train, i), json_array_size(train) == 1);
    const json_t *tokens = json_object_get(data, "val_tokens");
    if (json_is_integer(tokens)) {
        fprintf(out, "<tr><td>validation data<td>%s tokens <small>",
                text_count(buf, json_number_value(tokens)));
        report_put_text(out, text_of(data, "val"));
        fprintf(out, "</small>\n");
    }
    put_tokenizer(out, data);
    const json_t *changes = json_object_get(data, "changes");
    for (size_t i = 0; i < json_array_size(changes); i++)
        fprintf(out, "<tr><td>data changed<td>after step %lld, accepted by --accept-data-change\n",
                (long long)json_integer_value(json_object_get(json_array_get(changes, i), "until_step")));
}

void report_put_origin(FILE *out, const struct report_data *d)
{
    char small[32];
    const json_t *first = json_object_get(d->env, "first");
    if (d->env == NULL) return;
    fprintf(out, "<h2>How it was made</h2>\n<div class=card>\n");
    put_command(out, "command", text_of(first, "command"));
    put_command(out, first ? "resumed by" : "command", text_of(d->env, "command"));
    fprintf(out, "<table class=facts>\n");
    put_time(out, "started", text_of(first, "start"));
    put_time(out, first ? "resumed" : "started", text_of(d->env, "start"));
    put_worktree(out, d);
    put_data(out, d);
    const char *ranks = report_data_env(d, small, "ranks");
    if (ranks[0] && strcmp(ranks, "1") != 0) {
        fprintf(out, "<tr><td>ranks<td>");
        report_put_text(out, ranks);
        fprintf(out, "\n");
    }
    fprintf(out, "</table></div>\n");
}

/* The program as it was called, when the command says it in one plain word. */
static void put_program(FILE *out, const struct report_data *d)
{
    char word[512];
    snprintf(word, sizeof word, "%s", text_of(d->env, "command"));
    word[strcspn(word, " '")] = 0;
    const size_t n = strlen(word);
    const bool is_path = n >= 5 && strcmp(word + n - 5, "ingot") == 0 && (n == 5 || word[n - 6] == '/');
    report_put_text(out, is_path ? word : "ingot");
}

static void open_row(FILE *out, const struct report_data *d, const char *what, bool ingot)
{
    fprintf(out, "<div class=command><span>%s</span><code>", what);
    if (ingot) put_program(out, d);
}
static void close_row(FILE *out)
{
    fprintf(out, "</code>");
    put_copy(out);
}

/* The run, to be named in a command; `below`: what stands behind it in the same word. */
static void put_run_path(FILE *out, const struct report_data *d, const char *below)
{
    char path[1200];
    snprintf(path, sizeof path, "%s%s", d->path, below);
    fputc(' ', out);
    report_put_word(out, path);
}

static void put_resume(FILE *out, const struct report_data *d)
{
    int code;
    char small[32];
    const enum report_state state = report_data_state(d, &code);
    const char *command = text_of(d->env, "command"), *ranks = report_data_env(d, small, "ranks");
    if (d->config == NULL) return;
    open_row(out, d, state == REPORT_FINISHED ? "train on" : "resume", true);
    if (strstr(command, "ingot demo") && state != REPORT_FINISHED) {
        fprintf(out, " demo");
    } else {
        if (ranks[0] && strcmp(ranks, "1") != 0) {
            fprintf(out, " launch -n ");
            report_put_text(out, ranks);
            fprintf(out, " --");
        }
        fprintf(out, " train");
        put_run_path(out, d, "/config.yaml");
        fprintf(out, " --resume");
        if (state == REPORT_FINISHED && report_data_planned(d) > 0)
            fprintf(out, " --train.steps=%lld", 2 * (long long)report_data_planned(d));
    }
    close_row(out);
}

static void put_generate(FILE *out, const struct report_data *d)
{
    const json_t *data = json_object_get(d->env, "data");
    if (data && text_of(data, "tokenizer")[0] == 0) return;
    open_row(out, d, "generate", true);
    fprintf(out, " generate");
    put_run_path(out, d, "");
    fprintf(out, " --prompt ");
    report_put_word(out,
                    d->sample_count && d->samples[0].prompt[0] ? d->samples[0].prompt : "Once upon a time");
    close_row(out);
}

void report_put_next(FILE *out, const struct report_data *d)
{
    char val[256], parent[1024];
    fprintf(out, "<h2>What next</h2>\n<div class=card>\n");
    if (d->has_checkpoints) {
        put_generate(out, d);
        if (report_data_config(d, "data.val", val, sizeof val)[0]) {
            open_row(out, d, "evaluate", true);
            fprintf(out, " eval");
            put_run_path(out, d, "");
            close_row(out);
        }
        open_row(out, d, "export", true);
        fprintf(out, " ckpt export");
        put_run_path(out, d, "");
        fprintf(out, " -o");
        put_run_path(out, d, "-hf");
        close_row(out);
    }
    put_resume(out, d);
    text_parent(parent, sizeof parent, d->path);
    open_row(out, d, "other runs", true);
    fprintf(out, " runs ");
    report_put_word(out, parent);
    close_row(out);
    open_row(out, d, "TensorBoard", false);
    fprintf(out, "tensorboard --logdir ");
    report_put_word(out, parent);
    close_row(out);
    fprintf(out, "</div>\n");
}

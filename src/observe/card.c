#include "observe/card.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A string that YAML reads as written: JSON's form is YAML's. */
static void put_quoted(FILE *out, const char *text)
{
    json_t *s = json_string(text);
    char *dump = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    fputs(dump ? dump : "\"\"", out);
    free(dump);
    json_decref(s);
}

/* A cell of a table: no line breaks, no bars. */
static void put_cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputs("\\|", out);
        else
            fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
    }
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* The last value up to the checkpoint; NaN: none. */
static double value_at(const struct series *s, int64_t step)
{
    double v = NAN;
    for (int64_t i = 0; i < s->count; i++)
        if (s->x[i] <= (double)step) v = s->y[i];
    return v;
}

static void put_front(FILE *out, const struct card *c, const struct report_data *d)
{
    const double loss = value_at(&d->val_loss, c->step), bpb = value_at(&d->val_bpb, c->step);
    fprintf(out, "---\nlibrary_name: %s\npipeline_tag: text-generation\ntags:\n- ingot\n- text-generation\n",
            strcmp(c->family, "ingot") == 0 ? "ingot" : "transformers");
    if (isfinite(loss)) {
        fprintf(out, "model-index:\n- name: ");
        put_quoted(out, c->name);
        fprintf(out, "\n  results:\n  - task:\n      type: text-generation\n    dataset:\n      type: "
                     "held-out\n      name: held-out part of the training data\n    metrics:\n");
        fprintf(out, "    - type: loss\n      value: %.6g\n", loss);
        if (isfinite(bpb)) fprintf(out, "    - type: bits_per_byte\n      value: %.6g\n", bpb);
    }
    fprintf(out, "---\n\n");
}

static void put_key(FILE *out, const struct report_data *d, const char *what, const char *key)
{
    char value[512];
    if (report_data_config(d, key, value, sizeof value)[0] == 0) return;
    fprintf(out, "| %s | ", what);
    put_cell(out, value);
    fprintf(out, " |\n");
}

static void put_facts(FILE *out, const struct card *c, const struct report_data *d)
{
    char count[32];
    fprintf(out, "| | |\n|---|---|\n| architecture | %s: %lld layers, width %lld, %lld heads |\n", c->family,
            (long long)c->layers, (long long)c->width, (long long)c->heads);
    fprintf(out, "| parameters | %s |\n", text_count(count, c->parameters));
    fprintf(out, "| vocabulary | %lld |\n| longest sequence | %lld tokens |\n| weights | %s |\n",
            (long long)c->vocabulary, (long long)c->context, c->dtype);
    if (c->step > 0) {
        fprintf(out, "| trained on | %s tokens in %lld steps |\n", text_count(count, (double)c->tokens),
                (long long)c->step);
        put_key(out, d, "precision", "train.precision");
        put_key(out, d, "optimizer", "optim.name");
        put_key(out, d, "peak learning rate", "optim.lr");
        put_key(out, d, "tokens per step", "train.batch_tokens");
        put_key(out, d, "sequence length", "train.sequence_length");
    }
}

static void put_data(FILE *out, const struct report_data *d)
{
    char count[32];
    const json_t *data = json_object_get(d->env, "data"), *train = json_object_get(data, "train");
    if (json_array_size(train) == 0) return;
    fprintf(out, "\n## Data\n\n| source | tokens | share of the run |\n|---|---|---|\n");
    for (size_t i = 0; i < json_array_size(train); i++) {
        const json_t *source = json_array_get(train, i), *tokens = json_object_get(source, "tokens"),
                     *share = json_object_get(source, "share");
        fprintf(out, "| ");
        put_cell(out, text_of(source, "name"));
        fprintf(out, " | %s | ", json_is_integer(tokens) ? text_count(count, json_number_value(tokens)) : "");
        fprintf(out, "%.4g %% |\n", json_is_number(share) ? 100 * json_number_value(share) : 100);
    }
    const char *hash = text_of(data, "tokenizer_sha256");
    if (hash[0])
        fprintf(out, "\nTokenizer: %lld ids, sha256 %.12s.\n",
                (long long)json_integer_value(json_object_get(data, "vocab_size")), hash);
}

static bool is_metric(const char *key, const json_t *value)
{
    const size_t n = strlen(key), end = strlen("_stderr");
    static const char *const others[] = {"step", "time", "items"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key, others[i]) == 0) return false;
    return json_is_number(value) && !(n > end && strcmp(key + n - end, "_stderr") == 0);
}

static void put_tasks(FILE *out, const struct card *c, const struct report_data *d)
{
    for (size_t i = 0; i < json_array_size(d->evals); i++) {
        json_t *o = json_array_get(d->evals, i), *value;
        const char *key;
        if (json_integer_value(json_object_get(o, "step")) != c->step) continue;
        json_object_foreach(o, key, value)
        {
            char error[128];
            if (!is_metric(key, value)) continue;
            snprintf(error, sizeof error, "%.100s_stderr", key);
            const json_t *e = json_object_get(o, error);
            fprintf(out, "| ");
            put_cell(out, text_of(o, "task"));
            fprintf(out, " | %s | %.5g", key, json_number_value(value));
            if (json_is_number(e)) fprintf(out, " ± %.2g", json_number_value(e));
            fprintf(out, " |\n");
        }
    }
}

static void put_evals(FILE *out, const struct card *c, const struct report_data *d)
{
    char *rows = NULL;
    size_t bytes = 0;
    FILE *table = memory_stream(&rows, &bytes);
    const double loss = value_at(&d->val_loss, c->step), bpb = value_at(&d->val_bpb, c->step),
                 accuracy = value_at(&d->val_accuracy, c->step);
    if (isfinite(loss)) fprintf(table, "| held-out text | loss, nats per token | %.5g |\n", loss);
    if (isfinite(bpb)) fprintf(table, "| held-out text | bits per byte | %.5g |\n", bpb);
    if (isfinite(accuracy))
        fprintf(table, "| held-out text | next tokens that were right | %.4g |\n", accuracy);
    put_tasks(table, c, d);
    memory_stream_close(table);
    if (bytes > 0) fprintf(out, "\n## Evaluation\n\n| of | what | value |\n|---|---|---|\n%s", rows);
    free(rows);
}

/* A fence that the text does not hold. */
static void put_block(FILE *out, const char *language, const char *text)
{
    const char *fence = strstr(text, "```") ? "~~~~" : "```";
    const size_t n = strlen(text);
    fprintf(out, "%s%s\n%s%s%s\n", fence, language, text, n && text[n - 1] == '\n' ? "" : "\n", fence);
}

static void put_origin(FILE *out, const struct report_data *d)
{
    const json_t *first = json_object_get(d->env, "first");
    const char *command = text_of(first ? first : d->env, "command");
    fprintf(out, "\n## How it was made\n\n");
    if (command[0]) put_block(out, "", command);
    if (d->config) {
        fprintf(out, "\n<details><summary>config.yaml</summary>\n\n");
        put_block(out, "yaml", d->config);
        fprintf(out, "\n</details>\n");
    }
    fprintf(out,
            "\nWritten by ingot %s from the records of the run. They do not say licence, intended use "
            "and limits.\n",
            INGOT_VERSION);
}

/* RUN of RUN or RUN/ckpt/step-N. */
static void run_of(const char *path, char run[1024])
{
    snprintf(run, 1024, "%s", path);
    char *at = strstr(run, "/ckpt/step-");
    if (at && strchr(at + 6, '/') == NULL) *at = 0;
}

static void put_card(FILE *out, const struct card *c, const struct report_data *d)
{
    put_front(out, c, d);
    fprintf(out, "# ");
    put_cell(out, c->name);
    fprintf(out, c->step > 0 ? "\n\nA language model, trained with ingot.\n\n"
                             : "\n\nA language model, imported into ingot and not trained further.\n\n");
    put_facts(out, c, d);
    put_data(out, d);
    put_evals(out, c, d);
    put_origin(out, d);
}

status card_write(const struct card *c, const char *dir)
{
    char run[1024], path[1200], *text = NULL;
    size_t bytes = 0;
    struct report_data *d = calloc(1, sizeof *d);
    MEMORY_CHECK(d, "no memory for a model card");
    run_of(c->run, run);
    status st = report_data_read(d, run, 0);
    if (st == STATUS_DATA)
        st = STATUS_OK; /* a checkpoint without its run: the card has what the checkpoint says */
    if (st == STATUS_OK) {
        FILE *out = memory_stream(&text, &bytes);
        put_card(out, c, d);
        memory_stream_close(out);
        snprintf(path, sizeof path, "%.1100s/README.md", dir);
        st = io_write_file(path, text, bytes);
    }
    report_data_free(d);
    free(d);
    free(text);
    return st;
}

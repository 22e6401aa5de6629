/* One function per format: from a row of the file to prompts. */
#include "harness/harness_int.h"

#include <stdlib.h>
#include <string.h>

static json_t *value_of(struct harness_row *r, json_t *from, const char *key)
{
    json_t *v = json_object_get(from, key);
    if (v == NULL) harness_row_fail(r, "there is no '%s'", key);
    return v;
}

static const char *text_in(struct harness_row *r, json_t *from, const char *key)
{
    json_t *v = value_of(r, from, key);
    if (v && !json_is_string(v)) harness_row_fail(r, "'%s' is no text", key);
    return json_is_string(v) ? json_string_value(v) : "";
}
static const char *text_of(struct harness_row *r, const char *key)
{
    return text_in(r, r->json, key);
}

static json_t *list_in(struct harness_row *r, json_t *from, const char *key)
{
    json_t *v = value_of(r, from, key);
    if (v && (!json_is_array(v) || json_array_size(v) == 0)) harness_row_fail(r, "'%s' is no list", key);
    return v;
}

static const char *text_at(struct harness_row *r, json_t *list, size_t i)
{
    json_t *v = json_array_get(list, i);
    if (r->st == STATUS_OK && !json_is_string(v)) harness_row_fail(r, "a choice is no text");
    return json_is_string(v) ? json_string_value(v) : "";
}

/* A number, also as text; in [0, choices). */
static int index_of(struct harness_row *r, const char *key, const json_t *v, int64_t from, size_t choices)
{
    int64_t i = json_is_integer(v) ? json_integer_value(v) : -1;
    if (json_is_string(v)) {
        char *end;
        i = strtol(json_string_value(v), &end, 10);
        if (end == json_string_value(v) || *end) i = -1;
    }
    i -= from;
    if (r->st == STATUS_OK && (i < 0 || i >= (int64_t)choices))
        harness_row_fail(r, "'%s' names none of %zu choices", key, choices);
    return (int)i;
}

/* ---- HellaSwag */

static char *clean(const char *text)
{
    char *a = harness_strip(text), *b = harness_replace(a, " [title]", ". "), *c = harness_unbracket(b),
         *d = harness_replace(c, "  ", " ");
    free(a);
    free(b);
    free(c);
    return d;
}

static void row_hellaswag(struct harness_row *r)
{
    json_t *endings = list_in(r, r->json, "endings");
    const char *a = text_of(r, "ctx_a"), *activity = text_of(r, "activity_label");
    char *b = harness_capitalize(text_of(r, "ctx_b")), *raw = harness_join("%s: %s %s", activity, a, b),
         *query = clean(raw);
    const int gold = index_of(r, "label", value_of(r, r->json, "label"), 0, json_array_size(endings));
    harness_item_add(r, gold, NULL);
    for (size_t i = 0; i < json_array_size(endings); i++) {
        char *ending = clean(text_at(r, endings, i));
        harness_pair_add(r, harness_join("%s", query), harness_join(" %s", ending), ending);
        free(ending);
    }
    free(b);
    free(raw);
    free(query);
}

/* ---- ARC: AllenAI's files have {"stem", "choices": [{"text", "label"}]}, Hugging Face's the texts and labels apart. */

struct arc {
    const char *question;
    json_t *texts, *labels, *rows; /* rows: of AllenAI */
};

static struct arc arc_of(struct harness_row *r)
{
    json_t *q = value_of(r, r->json, "question");
    if (json_is_object(q)) return (struct arc){text_in(r, q, "stem"), NULL, NULL, list_in(r, q, "choices")};
    json_t *c = value_of(r, r->json, "choices");
    return (struct arc){text_of(r, "question"), list_in(r, c, "text"), list_in(r, c, "label"), NULL};
}

static void row_arc(struct harness_row *r)
{
    const struct arc a = arc_of(r);
    const size_t n = json_array_size(a.rows ? a.rows : a.texts);
    const char *key = text_of(r, "answerKey");
    int gold = -1;
    harness_item_add(r, 0, NULL);
    for (size_t i = 0; i < n && r->st == STATUS_OK; i++) {
        json_t *row = json_array_get(a.rows, i);
        const char *text = row ? text_in(r, row, "text") : text_at(r, a.texts, i),
                   *label = row ? text_in(r, row, "label") : text_at(r, a.labels, i);
        if (gold < 0 && strcmp(label, key) == 0) gold = (int)i;
        harness_pair_add(r, harness_join("Question: %s\nAnswer:", a.question), harness_join(" %s", text),
                         text);
    }
    if (r->st == STATUS_OK && gold < 0) harness_row_fail(r, "no choice has the label '%.20s'", key);
    r->task->items[r->task->item_count - 1].gold = gold;
}

/* ---- PIQA: the published labels stand in a file of their own. */

static void row_piqa(struct harness_row *r)
{
    json_t *label = r->label ? json_string(r->label) : json_incref(value_of(r, r->json, "label"));
    const char *goal = text_of(r, "goal");
    harness_item_add(r, index_of(r, "label", label, 0, 2), NULL);
    json_decref(label);
    static const char *const keys[] = {"sol1", "sol2"};
    for (int i = 0; i < 2; i++) {
        const char *text = text_of(r, keys[i]);
        harness_pair_add(r, harness_join("Question: %s\nAnswer:", goal), harness_join(" %s", text), text);
    }
}

/* ---- WinoGrande: the contexts differ and the continuation is the same. */

static void row_winogrande(struct harness_row *r)
{
    const char *sentence = text_of(r, "sentence"), *gap = strchr(sentence, '_');
    if (r->st == STATUS_OK && gap == NULL) harness_row_fail(r, "the sentence has no gap (_)");
    harness_item_add(r, index_of(r, "answer", value_of(r, r->json, "answer"), 1, 2), NULL);
    if (gap == NULL) return;
    char *rest = harness_strip(gap + 1);
    static const char *const keys[] = {"option1", "option2"};
    for (int i = 0; i < 2; i++) {
        char *context = harness_join("%.*s%s", (int)(gap - sentence), sentence, text_of(r, keys[i]));
        harness_pair_add(r, context, harness_join(" %s", rest), context);
    }
    free(rest);
}

/* ---- MMLU */

static void row_mmlu(struct harness_row *r)
{
    json_t *choices = list_in(r, r->json, "choices");
    if (r->st == STATUS_OK && json_array_size(choices) != 4) harness_row_fail(r, "it has not four choices");
    const int gold = index_of(r, "answer", value_of(r, r->json, "answer"), 0, 4);
    const char *subject = text_of(r, "subject");
    char *question = harness_strip(text_of(r, "question")), *words = harness_replace(subject, "_", " ");
    harness_item_add(r, gold, harness_join("%s", subject));
    for (int i = 0; i < 4; i++) {
        const char letter[] = {(char)('A' + i), 0};
        char *context =
            harness_join("The following are multiple choice questions (with answers) about %s.\n\n%s\nA. %s\n"
                         "B. %s\nC. %s\nD. %s\nAnswer:",
                         words, question, text_at(r, choices, 0), text_at(r, choices, 1),
                         text_at(r, choices, 2), text_at(r, choices, 3));
        harness_pair_add(r, context, harness_join(" %s", letter), letter);
    }
    free(question);
    free(words);
}

/* ---- texts */

static void row_lambada(struct harness_row *r)
{
    const char *text = text_of(r, "text"), *last = strrchr(text, ' ');
    harness_item_add(r, 0, NULL);
    const size_t before = last ? (size_t)(last - text) : 0;
    harness_pair_add(r, harness_join("%.*s", (int)before, text), harness_join(" %s", last ? last + 1 : text),
                     "");
}

/* The Pile names the source in meta.pile_set_name. */
static void row_perplexity(struct harness_row *r)
{
    const char *text = text_of(r, "text");
    const json_t *domain = json_object_get(r->json, "domain");
    if (domain == NULL) domain = json_object_get(json_object_get(r->json, "meta"), "pile_set_name");
    struct harness_item *item =
        harness_item_add(r, 0, json_is_string(domain) ? harness_join("%s", json_string_value(domain)) : NULL);
    item->words = harness_words(text);
    item->bytes = (int64_t)strlen(text);
    harness_pair_add(r, harness_join("%s", ""), harness_join("%s", text), "");
}

static const struct harness_format formats[] = {
    {"hellaswag", HARNESS_CHOICE, true, false, false, row_hellaswag},
    {"arc_easy", HARNESS_CHOICE, true, false, false, row_arc},
    {"arc_challenge", HARNESS_CHOICE, true, false, false, row_arc},
    {"piqa", HARNESS_CHOICE, true, false, true, row_piqa},
    {"winogrande", HARNESS_CHOICE, false, false, false, row_winogrande},
    {"mmlu", HARNESS_CHOICE, false, true, false, row_mmlu},
    {"lambada", HARNESS_CLOZE, false, false, false, row_lambada},
    {"perplexity", HARNESS_TEXT, false, false, false, row_perplexity},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

const char *harness_format_name(int i)
{
    return i < FORMATS ? formats[i].name : NULL;
}

const struct harness_format *harness_format_find(const char *name)
{
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

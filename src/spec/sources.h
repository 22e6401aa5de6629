/* The value of data.train: one pattern of shards, or a list of sources to mix.
 *
 *     data:
 *       train:
 *         - {path: data/web_train_*.bin, name: web, weights: [[0, 0.9], [0.8, 0.5]]}
 *         - {path: data/math_train_*.bin, name: math, weights: [[0, 0.1], [0.8, 0.5]], epochs_max: 4}
 *       weights: linear
 *
 * The spec keeps a list as one line of JSON, which is also YAML; it is dumped, compared and hashed like any other
 * text. The command line accepts the same form: --data.train='[{path: a_*.bin, weight: 2}, {path: b_*.bin, weight:
 * 1}]'. A text that begins with '[' and '{' is a list; every other text is a pattern. */
#ifndef INGOT_SPEC_SOURCES_H
#define INGOT_SPEC_SOURCES_H
#include "spec/spec.h"

enum { SOURCES_MAX = 64, SOURCE_POINTS_MAX = 16, SOURCE_NAME = 64 };

struct source_point {
    double at; /* fraction of the run when all points of the source are <= 1; else tokens of the run */
    double weight;
};
struct data_source {
    char path[SPEC_TEXT];
    char name[SOURCE_NAME]; /* derived from the path when not given */
    double epochs_max;      /* 0: no limit */
    int point_count;        /* 0: weight is the size */
    struct source_point points[SOURCE_POINTS_MAX]; /* "weight: x" is one point at 0 */
};
struct sources {
    int count;
    bool list; /* false: a single pattern */
    struct data_source list_of[SOURCES_MAX];
};

/* Parses a non-empty value of data.train. On failure returns false, and `why` gets one phrase. */
bool sources_read(struct sources *s, const char *text, char why[SPEC_TEXT]);
/* True when the points of a source are fractions of the run. */
bool sources_relative(const struct data_source *s);
/* True when the points of any source in a value of data.train are fractions of the run: a run of another length then
 * has another order of samples. */
bool sources_any_relative(const char *text);
/* True when the text of a value is a list. */
bool sources_is_list(const char *text);
#endif

/* The value of data.train: one pattern of shards, or a list of sources that are mixed.
 *
 *     data:
 *       train:
 *         - {path: data/web_train_*.bin, name: web, weights: [[0, 0.9], [0.8, 0.5]]}
 *         - {path: data/math_train_*.bin, name: math, weights: [[0, 0.1], [0.8, 0.5]], epochs_max: 4}
 *       weights: linear
 *
 * The spec keeps a list as one line of JSON, which is YAML, too; so it dumps, compares and hashes as other texts do, and the
 * command line takes the same: --data.train='[{path: a_*.bin, weight: 2}, {path: b_*.bin, weight: 1}]'. A text is a list when
 * '[' and '{' begin it; every other text is a pattern. */
#ifndef INGOT_SPEC_SOURCES_H
#define INGOT_SPEC_SOURCES_H
#include "spec/spec.h"

enum { SOURCES_MAX = 64, SOURCE_POINTS_MAX = 16, SOURCE_NAME = 64 };

struct source_point {
    double at; /* all of a source's <= 1: part of the run; else tokens of the run */
    double weight;
};
struct data_source {
    char path[SPEC_TEXT];
    char name[SOURCE_NAME]; /* not given: from the path */
    double epochs_max;      /* 0: no limit */
    int point_count;        /* 0: by size */
    struct source_point points[SOURCE_POINTS_MAX]; /* weight: x is one point at 0 */
};
struct sources {
    int count;
    bool list; /* false: a single pattern */
    struct data_source list_of[SOURCES_MAX];
};

/* From a value of data.train that is not empty. False: `why` gets one phrase. */
bool sources_read(struct sources *s, const char *text, char why[SPEC_TEXT]);
/* True when a source's points are parts of the run. */
bool sources_relative(const struct data_source *s);
/* The same of any source of a value of data.train: then another length of the run is another order of samples. */
bool sources_any_relative(const char *text);
/* True when the text of a value is meant as a list. */
bool sources_is_list(const char *text);
#endif

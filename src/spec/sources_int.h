/* Private to spec/: a list of sources out of YAML events, for the file's reader and the command line. */
#ifndef INGOT_SPEC_SOURCES_INT_H
#define INGOT_SPEC_SOURCES_INT_H
#include "spec/sources.h"
#include <yaml.h>

enum sources_at { SOURCES_IN_LIST, SOURCES_IN_SOURCE, SOURCES_IN_VALUE, SOURCES_IN_POINTS, SOURCES_IN_POINT };
struct sources_reader {
    struct sources *out;
    enum sources_at at;
    int key;       /* SOURCES_IN_VALUE: which */
    unsigned seen; /* keys of this source, a bit each */
    int numbers;   /* of this point */
    bool done;     /* the list has ended, and is sound */
};
/* The reader of the list whose beginning was the last event. */
void sources_begin(struct sources_reader *r, struct sources *out);
/* False: `why` says what is wrong at this event. */
bool sources_event(struct sources_reader *r, const yaml_event_t *e, char why[SPEC_TEXT]);
/* The canonical text; false when it is too long. */
bool sources_text(const struct sources *s, char text[SPEC_SOURCES_TEXT]);
#endif

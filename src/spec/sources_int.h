/* Private to spec/: parses a list of sources from YAML events, for the file reader and the command line. */
#ifndef INGOT_SPEC_SOURCES_INT_H
#define INGOT_SPEC_SOURCES_INT_H
#include "spec/sources.h"
#include <yaml.h>

enum sources_at { SOURCES_IN_LIST, SOURCES_IN_SOURCE, SOURCES_IN_VALUE, SOURCES_IN_POINTS, SOURCES_IN_POINT };
struct sources_reader {
    struct sources *out;
    enum sources_at at;
    int key;       /* SOURCES_IN_VALUE: the key of this value */
    unsigned seen; /* keys seen in this source, one bit each */
    int numbers;   /* numbers read of this point */
    bool done;     /* the list has ended and is valid */
};
/* Starts a reader for the list whose first event was the last event. */
void sources_begin(struct sources_reader *r, struct sources *out);
/* Consumes one event. On failure returns false, and `why` names the mistake. */
bool sources_event(struct sources_reader *r, const yaml_event_t *e, char why[SPEC_TEXT]);
/* Writes the canonical text; returns false when it is too long. */
bool sources_text(const struct sources *s, char text[SPEC_SOURCES_TEXT]);
#endif

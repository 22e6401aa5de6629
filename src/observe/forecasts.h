/* forecasts: what was predicted of a run and what came out: RUN/forecast.jsonl, a line for each process of the run that
 * made steps (docs/FORMATS.md). past.h reads it. */
#ifndef INGOT_OBSERVE_FORECASTS_H
#define INGOT_OBSERVE_FORECASTS_H
#include <stdbool.h>

struct forecast_line {
    const char *machine;        /* row of machine.def: "h200", "cpu" */
    bool row;                   /* predicted from the row's rates; false: from rates measured on the host then */
    const char *precision, *axes; /* "bf16", "dp 2 x tp 1 x pp 1" */
    int ranks;
    double parameters, tokens;  /* tokens: of a step */
    double predicted_s, measured_s; /* of a step */
    double predicted_bytes, measured_bytes; /* of this rank */
};
/* What cannot be written costs one warning. */
void forecasts_append(const char *run_dir, const struct forecast_line *line);
#endif

/* Requests of POST /v1/completions. What is accepted keeps the limits that the engine relies on. */
#include "serve/completion.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct completion c;
    struct completion_error e;
    if (!completion_parse(&c, (const char *)data, size, "m", &e)) {
        char *text = completion_error_text(&e);
        if (e.http < 400 || e.message[0] == 0 || text == NULL) abort();
        free(text);
    } else {
        if (c.prompt_count < 1 || c.n < 1 || c.n * c.prompt_count > COMPLETION_CHOICES) abort();
        if (!(c.temperature >= 0) || !(c.top_p > 0 && c.top_p <= 1) || c.top_k < 0) abort();
        if (c.tokens < !c.echo || c.likely < -1 || c.likely > COMPLETION_LIKELY) abort();
        if (c.stop_count > COMPLETION_STOPS) abort();
        for (int64_t i = 0; i < c.prompt_count; i++)
            if ((c.prompts[i].text == NULL) == (c.prompts[i].ids == NULL)) abort();
    }
    completion_free(&c);
    return 0;
}

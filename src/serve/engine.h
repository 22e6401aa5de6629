/* The model of `ingot serve --model`, and the thread that holds it: it alone touches the device. */
#ifndef INGOT_SERVE_ENGINE_H
#define INGOT_SERVE_ENGINE_H
#include "serve/job.h"
#include "serve/serve.h"

struct engine;
/* Loads the model and starts its thread. Errors: those of restore_open (train/restore.h). */
status engine_open(struct engine **e, const struct serve_options *o) WARN_UNUSED;
/* All requests end with 503, at once or at the next token. */
void engine_stop(struct engine *e);
void engine_close(struct engine *e); /* accepts NULL */
const char *engine_model(const struct engine *e);
char *engine_models_text(const struct engine *e); /* GET /v1/models, malloc'd */
struct queue *engine_queue(struct engine *e);
#endif

/* The choice of the validation part. */
#ifndef INGOT_DATA_BUILD_BUILD_VAL_H
#define INGOT_DATA_BUILD_BUILD_VAL_H
#include "data/build/build.h"

/* BUILD_VAL_HASH: whether a document with these bytes is in the validation part. */
bool build_val_by_hash(const void *data, size_t bytes, double fraction);
/* Reads the inputs of a build with BUILD_VAL_HASH until a document falls into the validation part. If none of them
 * does, chooses another part that exists: TAIL with the same fraction where the last input is plain text that can be divided
 * there, else EVERY with the number of documents, which is the last document. *documents: how many there are then; 0: no change. The
 * same inputs give the same choice. */
void build_val_choose(struct build_config *c, int64_t *documents);
#endif

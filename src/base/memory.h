/* Memory that the system refuses. Three ways to answer, all of which end in exit code 5 (STATUS_OUT_OF_MEMORY) with one
 * line:
 *
 *   return FAIL(STATUS_OUT_OF_MEMORY, ...)   where the caller can undo what it began
 *   MEMORY_CHECK (base/status.h)   where it is a few bytes and no caller could go on without them
 *   memory_get, memory_stream      for libraries that would take a refusal for bad input, or cut a text short
 *
 * The last two end the process at once. That is safe: whatever ingot writes to disk survives a kill at any moment. */
#ifndef INGOT_BASE_MEMORY_H
#define INGOT_BASE_MEMORY_H
#include <stddef.h>
#include <stdio.h>

/* malloc that ends the process when it is refused: for json_set_alloc_funcs. */
void *memory_get(size_t bytes);
/* strdup, the same way. */
char *memory_text(const char *text);
/* As open_memstream, but it ends the process when memory is refused: the text is whole. *text is complete after
 * memory_stream_close, and the caller's to free. */
FILE *memory_stream(char **text, size_t *bytes);
void memory_stream_close(FILE *f);
/* Call once in main. OpenMP's runtime calls exit(1) when it gets no memory or no thread; the program then ends with
 * 5. */
void memory_guard_runtime(void);
/* What the user can do, with the bytes that the process holds and that the machine has left. Returns buf. */
const char *memory_advice(char buf[256]);
#endif

/* PREFIX_build.journal: how far a build is, so that the same command resumes it after a kill. Written as a whole
 * (temporary, fsync, rename) after everything that it speaks of is on disk. docs/FORMATS.md. */
#ifndef INGOT_DATA_BUILD_BUILD_JOURNAL_H
#define INGOT_DATA_BUILD_BUILD_JOURNAL_H
#include "data/build/corpus.h"
#include "data/read/reader.h"

struct build_mark { /* where reading goes on */
    int input;
    struct reader_mark at;
    int64_t records; /* before it, in all inputs */
};
struct build_journal {
    char *settings; /* all that decides on the output but the inputs */
    int64_t *mtimes_ns; /* [state.rows.input_count] */
    int hashed;         /* inputs whose hash is known */
    struct build_mark mark;
    int64_t bytes_done, hashes, sketches; /* of all inputs; in the files of hashes and sketches */
    struct corpus_state state; /* rows: with inputs, skipped and duplicates, too */
};
/* STATUS_DATA: damaged. On success: build_journal_free. */
status build_journal_read(struct build_journal *j, const char *path) WARN_UNUSED;
status build_journal_parse(struct build_journal *j, const char *path, const char *data, size_t bytes) WARN_UNUSED;
status build_journal_write(const struct build_journal *j, const char *path) WARN_UNUSED;
void build_journal_free(struct build_journal *j);

/* One build per prefix: holds PREFIX_build.lock until the end of the process, or of build_journal_unlock, which
 * removes it. STATUS_CONFIG when another process has it. */
status build_journal_lock(const char *prefix, int *fd) WARN_UNUSED;
void build_journal_unlock(const char *prefix, int *fd);
#endif

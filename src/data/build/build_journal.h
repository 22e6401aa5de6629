/* PREFIX_build.journal: the progress of a build, from which the same command resumes after a kill. It is replaced
 * atomically (temporary, fsync, rename) after all data it refers to is on disk. Format: docs/FORMATS.md. */
#ifndef INGOT_DATA_BUILD_BUILD_JOURNAL_H
#define INGOT_DATA_BUILD_BUILD_JOURNAL_H
#include "data/build/corpus.h"
#include "data/read/reader.h"

struct build_mark { /* position where reading resumes */
    int input;
    struct reader_mark at;
    int64_t records; /* records before it, over all inputs */
};
struct build_tally { /* documents of the word that is being read */
    int64_t read, skipped;
};
struct build_journal {
    char *settings; /* all settings that determine the output, except the inputs */
    int64_t *mtimes_ns; /* [state.rows.input_count] */
    int hashed;         /* number of inputs with a known hash */
    struct build_mark mark;
    struct build_tally tally;
    int64_t bytes_done, hashes, sketches; /* bytes done of all inputs; entries in the files of hashes and sketches */
    struct corpus_state state; /* the rows include inputs, skipped and duplicates */
};
/* STATUS_DATA: damaged. After success the caller calls build_journal_free. */
status build_journal_read(struct build_journal *j, const char *path) WARN_UNUSED;
status build_journal_parse(struct build_journal *j, const char *path, const char *data, size_t bytes) WARN_UNUSED;
status build_journal_write(const struct build_journal *j, const char *path) WARN_UNUSED;
void build_journal_free(struct build_journal *j);

/* Allows one build per prefix: holds PREFIX_build.lock until the process ends or build_journal_unlock removes it.
 * STATUS_CONFIG when another process holds it. */
status build_journal_lock(const char *prefix, int *fd) WARN_UNUSED;
void build_journal_unlock(const char *prefix, int *fd);
#endif

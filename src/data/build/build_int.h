/* Shared by the files of a build.
 *
 *   reader thread      build_source.c    inputs -> batches of records, in a ring of slots
 *   encoder threads    build_encode.c    a group of a slot's records -> ids; a long document in parts
 *   calling thread     build.c           groups in input order -> corpus, duplicates, journal
 *   hashing thread     build_input.c     XXH64 of the input files, shortly after the reader
 *
 * build_pipe.c moves slots and groups between them. The contents of a group depend on its records alone, and groups
 * are written in input order. The output therefore depends neither on the number of threads nor on the batches. */
#ifndef INGOT_DATA_BUILD_BUILD_INT_H
#define INGOT_DATA_BUILD_BUILD_INT_H
#include "data/build/build.h"
#include "data/build/build_journal.h"
#include "data/build/build_source.h"
#include "data/build/chat.h"
#include "data/build/corpus.h"
#include "data/build/dedup.h"
#include "data/tokenizer/tokenizer.h"
#include <pthread.h>

enum {
    GROUP_BYTES = 64 << 10,  /* minimum input bytes of a group of short records */
    LONG_BYTES = 4 << 20,    /* minimum size of a record that is encoded in parts */
    PART_BYTES = 1 << 20,    /* maximum size of a part */
    BATCH_BYTES = 4 << 20,   /* size of a slot; a longer record extends it */
    BORROW_BYTES = 64 << 20, /* a batch of this size or more is not copied: the reader waits until it is written */
};

struct build_input { /* one file */
    int input; /* index in config->inputs: a pattern of shards has several files */
    char *path;
    char *name; /* the path as UTF-8, for JSON */
    int64_t bytes, mtime_ns;
    uint64_t xxh64;
};
struct build_inputs {
    struct build_input *files;
    int count;
    int64_t bytes; /* sum over all files */
    /* State of the hashing thread; the lock guards the fields below. */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t thread;
    bool opened, running, quit;
    int hashed;         /* number of hashed files */
    int64_t read_bytes; /* bytes the reader has read */
    status st;
    char message[512];
};
/* Opens every file: STATUS_IO when one is missing. */
status build_inputs_open(struct build_inputs *in, const struct build_config *config) WARN_UNUSED;
void build_inputs_close(struct build_inputs *in); /* also joins the thread; accepts a zeroed struct */
/* Starts hashing. Files before index `hashed` keep their hash. */
status build_inputs_hash(struct build_inputs *in, int hashed) WARN_UNUSED;
void build_inputs_follow(struct build_inputs *in, int64_t read_bytes);
int build_inputs_hashed(struct build_inputs *in);
/* Waits until all files are hashed. STATUS_DATA: a file changed since build_inputs_open. */
status build_inputs_finish(struct build_inputs *in) WARN_UNUSED;

struct build_piece { /* one document of a group, or a part of one */
    enum corpus_split split;
    int64_t tokens, text_bytes;
    bool begins; /* true: a document of the corpus begins here; false: it continues the previous one */
    bool whole;  /* the text begins here: hash and bytes cover all of it */
    struct dedup_hash hash;
    int64_t bytes, record; /* input bytes; input record */
};
struct build_ids { /* growable */
    int32_t *ids;
    int64_t count, room;
    uint8_t *targets; /* of the ids, 1: a target; for a build with masks */
    int64_t target_room;
    struct build_piece *pieces;
    int64_t piece_count, piece_room;
    uint32_t *sketches; /* sketches of whole pieces, in their order */
    int64_t sketch_count, sketch_room;
};
struct build_part { /* part [from, to) of a long document */
    size_t from, to;
    struct build_piece piece;
    bool ends; /* last part of the document */
    bool done;
    status st;
    char message[256];
    struct build_ids out;
};
struct build_group {
    int64_t begin, end; /* range of records of the batch */
    int64_t first;      /* number of record `begin` over all inputs: orders groups by document */
    bool is_long;       /* a single record that is encoded in parts */
    bool done;          /* encoded, or split into parts */
    struct build_ids out;
    int64_t skipped, empty;
    status st;         /* error that ended the group */
    char message[512]; /* message of st, or of the first skipped record */
    struct reader_document document;
    struct build_part *parts;
    int64_t part_count, part_next, part_written;
    struct build_group *next_long;
};
struct build_slot {
    struct reader_batch batch;
    char *data;
    size_t data_room;
    struct reader_record *records;
    int64_t record_room;
    char **faults;
    int64_t fault_count;
    int64_t *places; /* NULL when not needed */
    int64_t place_room;
    struct build_group *groups;
    int64_t group_count, group_room;
    struct build_source *source; /* source of the batch */
    int64_t record_base; /* number of records of all inputs before this batch */
    bool last;           /* the last input ends here */
    struct build_mark after;
    int64_t bytes_done; /* bytes of all inputs up to the end of this batch */
    status st;          /* error that ended reading: the slot has no groups */
    char message[512];
};

struct build_worker {
    struct build *build;
    struct encoder *encoder;
    struct dedup_sketcher *sketcher;
    pthread_t thread;
    bool runs;
};
/* Encodes a group, or splits a long document into parts. */
void build_encode_group(struct build_worker *w, struct build_slot *slot, struct build_group *g);
void build_encode_part(struct build_worker *w, struct build_group *g, struct build_part *part);
void build_encode_release(struct build_group *g); /* frees the document and the parts */

enum build_owner { BUILD_COPIED, BUILD_BORROWED }; /* ownership of a slot's batch */
struct build_pipe {
    pthread_mutex_t lock;
    pthread_cond_t work, room, done; /* signals for the encoders; the reader; the writer */
    struct build_slot *slots;
    int slot_count;
    int64_t head, tail; /* slots [tail, head) are in use; slot i is slots[i % slot_count] */
    int64_t next_slot, next_group; /* the first group that no encoder has taken */
    struct build_group *longs;     /* long documents in order: their parts are encoded first */
    bool quit, ended;              /* ended: the reader has ended */
    pthread_t reader;
    bool reader_runs;
    struct build_worker *workers;
    int worker_count;
    struct build_mark from;
};
status build_pipe_start(struct build *b) WARN_UNUSED;
/* For the writer; each call waits. build_pipe_next: the next slot in input order, NULL at the end of the inputs.
 * build_pipe_wait: until a group of that slot is encoded. build_pipe_part: the next part of a long group, NULL after
 * the last. */
struct build_slot *build_pipe_next(struct build_pipe *p);
void build_pipe_wait(struct build_pipe *p, const struct build_group *g);
struct build_part *build_pipe_part(struct build_pipe *p, struct build_group *g);
void build_pipe_part_written(struct build_pipe *p, struct build_group *g); /* releases the part above */
void build_pipe_release(struct build_pipe *p);                             /* releases the slot above */
void build_pipe_stop(struct build_pipe *p); /* joins the threads and frees everything; accepts a zeroed struct */

struct build {
    const struct build_config *config;
    struct tokenizer *tokenizer; /* NULL: the inputs are token ids */
    struct chat *chat;           /* NULL: documents are texts, and all tokens targets */
    char tokenizer_dir[1024];    /* "": none */
    char tokenizer_hash[65];     /* "": unknown */
    int64_t vocab_size;
    uint32_t *token_bytes; /* [vocab_size]; NULL: unknown */
    int32_t eot;
    char *settings;
    struct build_inputs inputs;
    struct build_pipe pipe;
    struct corpus *corpus;
    struct dedup *dedup;     /* NULL: no check for duplicates */
    struct dedup_near *near; /* NULL: nobody looks for near duplicates */
    struct build_progress progress;
    int64_t tail_at;         /* TAIL: input byte from which documents are validation */
    int64_t skipped, empty;
    struct build_tally tally;
    char first_skip[512]; /* message of the first document of the tally that this process skipped; "": none */
    bool dropping; /* the document being written is a duplicate and is dropped */
    struct manifest_duplicates duplicates;
    int lock;
    bool opened;  /* the files of this prefix belong to this build; they are removed on failure unless `durable` */
    bool durable; /* a journal exists: the partial build is kept */
    int64_t durable_ns;
};

enum build_begin { BUILD_ANEW, BUILD_GOES_ON, BUILD_IS_DONE };
/* build_resume.c. Determines the state left by an earlier build. GOES_ON: fills *j, which the caller frees; IS_DONE:
 * fills *m, which the caller frees. */
status build_resume_look(struct build *b, struct build_journal *j, struct manifest *m,
                         enum build_begin *begin) WARN_UNUSED;
/* Opens corpus, hashes and sketches: from the start (j NULL) or at the position of j. */
status build_resume_open(struct build *b, const struct build_journal *j) WARN_UNUSED;
/* Makes the written data durable, then writes the journal. */
status build_resume_save(struct build *b, struct build_mark mark) WARN_UNUSED;
/* Removes the journal and its files of hashes and sketches. */
status build_resume_clear(struct build *b) WARN_UNUSED;
#endif

/* What the files of a build share.
 *
 *   reader thread      build_source.c    inputs -> batches of records, copied into a ring of slots
 *   encoder threads    build_encode.c    a group of a slot's records -> ids; a long document in parts
 *   calling thread     build.c           groups in input order -> corpus, duplicates, journal
 *   hashing thread     build_input.c     XXH64 of the input files, close behind the reader
 *
 * build_pipe.c moves slots and groups between them. What a group holds depends on its records alone, and groups
 * are written in input order: so the output does not depend on the number of threads, nor on batches. */
#ifndef INGOT_DATA_BUILD_BUILD_INT_H
#define INGOT_DATA_BUILD_BUILD_INT_H
#include "data/build/build.h"
#include "data/build/build_journal.h"
#include "data/build/build_source.h"
#include "data/build/corpus.h"
#include "data/build/dedup.h"
#include "data/tokenizer/tokenizer.h"
#include <pthread.h>

enum {
    GROUP_BYTES = 64 << 10,  /* of input, at least, in a group of short records */
    LONG_BYTES = 4 << 20,    /* a record from this size on is encoded in parts */
    PART_BYTES = 1 << 20,    /* of a long document, at most */
    BATCH_BYTES = 4 << 20,   /* of a slot; a longer record makes it longer */
    BORROW_BYTES = 64 << 20, /* a batch from this size on is not copied: the reader waits until it is written */
};

struct build_input { /* one file */
    int input; /* that it belongs to, of config->inputs: a pattern of shards has several */
    char *path;
    char *name; /* the path as UTF-8, for JSON */
    int64_t bytes, mtime_ns;
    uint64_t xxh64;
};
struct build_inputs {
    struct build_input *files;
    int count;
    int64_t bytes; /* of all */
    /* The hashing thread's; the lock guards what follows. */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t thread;
    bool opened, running, quit;
    int hashed;         /* files that are done */
    int64_t read_bytes; /* how far the reader is */
    status st;
    char message[512];
};
/* Looks at every file: STATUS_IO when one is not there. */
status build_inputs_open(struct build_inputs *in, const struct build_config *config) WARN_UNUSED;
void build_inputs_close(struct build_inputs *in); /* also ends the thread; zeroed is fine */
/* Files before `hashed` keep the hash that they have. */
status build_inputs_hash(struct build_inputs *in, int hashed) WARN_UNUSED;
void build_inputs_follow(struct build_inputs *in, int64_t read_bytes);
int build_inputs_hashed(struct build_inputs *in);
/* Waits until all files are hashed. STATUS_DATA: one of them changed since build_inputs_open. */
status build_inputs_finish(struct build_inputs *in) WARN_UNUSED;

struct build_piece { /* one document of a group, or a part of one */
    enum corpus_split split;
    int64_t tokens, text_bytes;
    bool begins; /* a document of the corpus; else it goes on with the one before */
    bool whole;  /* the text begins here: hash and bytes are of all of it */
    struct dedup_hash hash;
    int64_t bytes, record; /* of the input */
};
struct build_ids { /* growing */
    int32_t *ids;
    int64_t count, room;
    struct build_piece *pieces;
    int64_t piece_count, piece_room;
    uint32_t *sketches; /* of whole pieces, in their order */
    int64_t sketch_count, sketch_room;
};
struct build_part { /* of a long document: [from, to) */
    size_t from, to;
    struct build_piece piece;
    bool ends; /* the document */
    bool done;
    status st;
    char message[256];
    struct build_ids out;
};
struct build_group {
    int64_t begin, end; /* records of the batch */
    int64_t first;      /* record of all inputs that `begin` is: groups in the order of their documents */
    bool is_long;       /* one record, to be encoded in parts */
    bool done;          /* encoded, or cut into parts */
    struct build_ids out;
    int64_t skipped;
    status st;         /* what ended the group */
    char message[512]; /* of st, or of the first record that was skipped */
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
    int64_t *places; /* NULL when nobody asks */
    int64_t place_room;
    struct build_group *groups;
    int64_t group_count, group_room;
    struct build_source *source; /* of the batch */
    int64_t record_base; /* records of all inputs before this batch */
    bool last;           /* the last input ends here */
    struct build_mark after;
    int64_t bytes_done; /* of all inputs, behind this batch */
    status st;          /* what ended reading: no groups */
    char message[512];
};

struct build_worker {
    struct build *build;
    struct encoder *encoder;
    struct dedup_sketcher *sketcher;
    pthread_t thread;
    bool runs;
};
/* Encodes a group, or cuts a long document into parts. */
void build_encode_group(struct build_worker *w, struct build_slot *slot, struct build_group *g);
void build_encode_part(struct build_worker *w, struct build_group *g, struct build_part *part);
void build_encode_release(struct build_group *g); /* the document and the parts */

enum build_owner { BUILD_COPIED, BUILD_BORROWED }; /* of a slot's batch */
struct build_pipe {
    pthread_mutex_t lock;
    pthread_cond_t work, room, done; /* for the encoders; for the reader; for the writer */
    struct build_slot *slots;
    int slot_count;
    int64_t head, tail; /* slots [tail, head) are in use, of slots[i % slot_count] */
    int64_t next_slot, next_group; /* the first group that nobody has taken */
    struct build_group *longs;     /* long documents, in order: their parts come first */
    bool quit, ended;              /* ended: the reader is */
    pthread_t reader;
    bool reader_runs;
    struct build_worker *workers;
    int worker_count;
    struct build_mark from;
};
status build_pipe_start(struct build *b) WARN_UNUSED;
/* For the writer, which waits in each: the next slot in input order, NULL at the end of the inputs; a group of it;
 * the next part of a long group, NULL when there is none left. */
struct build_slot *build_pipe_next(struct build_pipe *p);
void build_pipe_wait(struct build_pipe *p, const struct build_group *g);
struct build_part *build_pipe_part(struct build_pipe *p, struct build_group *g);
void build_pipe_part_written(struct build_pipe *p, struct build_group *g); /* the part above */
void build_pipe_release(struct build_pipe *p);                             /* the slot above */
void build_pipe_stop(struct build_pipe *p); /* ends the threads, frees all; zeroed is fine */

struct build {
    const struct build_config *config;
    struct tokenizer *tokenizer; /* NULL: the inputs are token ids */
    char tokenizer_dir[1024];    /* "": there is none */
    char tokenizer_hash[65];     /* "": unknown */
    int64_t vocab_size;
    uint32_t *token_bytes; /* [vocab_size]; NULL: unknown */
    int32_t eot;
    char *settings;
    struct build_inputs inputs;
    struct build_pipe pipe;
    struct corpus *corpus;
    struct dedup *dedup;     /* NULL: nobody looks for duplicates */
    struct dedup_near *near; /* NULL: no report of near ones */
    struct build_progress progress;
    int64_t tail_at;         /* TAIL: input byte from which documents are validation */
    int64_t skipped;
    bool dropping; /* the document being written is a duplicate that goes */
    struct manifest_duplicates duplicates;
    int lock;
    bool opened;  /* the files of this prefix are ours to remove, unless */
    bool durable; /* a journal is there: then what is built so far stays */
    int64_t durable_ns;
};

enum build_begin { BUILD_ANEW, BUILD_GOES_ON, BUILD_IS_DONE };
/* build_resume.c. Finds out what an earlier build left; GOES_ON: with *j, which the caller frees; IS_DONE: with *m, the same. */
status build_resume_look(struct build *b, struct build_journal *j, struct manifest *m,
                         enum build_begin *begin) WARN_UNUSED;
/* Opens corpus, hashes and sketches: anew (j NULL) or where j says. */
status build_resume_open(struct build *b, const struct build_journal *j) WARN_UNUSED;
/* Makes durable what is written, and the journal. */
status build_resume_save(struct build *b, struct build_mark mark) WARN_UNUSED;
/* Removes the journal and what stands beside it. */
status build_resume_clear(struct build *b) WARN_UNUSED;
#endif

/* Devices: where arenas lie, where ops are queued. One header, two drivers: the host (a stream is NULL, calls have happened when they
 * return) and CUDA (driver.c; present when the program was built with a toolkit).
 *
 * Nothing here runs inside a step but uploads, downloads, launches and the one wait at the step's end: memory, events and graphs are
 * made at start. Errors are STATUS_DEVICE (STATUS_FIT for memory) and name the call; the scope path says where. */
#ifndef INGOT_DEV_DEV_H
#define INGOT_DEV_DEV_H
#include "base/arena.h"
#include "base/status.h"

enum dev_kind { DEV_AUTO, DEV_CPU, DEV_CUDA };  /* AUTO: a GPU where there is one that this build can use */

struct dev_driver;
struct dev {
    enum dev_kind kind;         /* never AUTO once open */
    const struct dev_driver *driver; /* NULL: the host */
    int index;                  /* of the GPU */
    char name[96];              /* "NVIDIA H200", "cpu" */
    int sm;                     /* compute capability: 90 */
    int multiprocessors;
    size_t bytes_total, bytes_free; /* memory of the GPU when it was opened; 0 on the host */
    int driver_version, runtime_version; /* as CUDA counts: 13000; 0 on the host */
};

/* STATUS_DEVICE in one line: no driver, no GPU, an older one than the build serves, a build without CUDA. DEV_AUTO never fails for
 * want of a GPU; a GPU that is there but cannot be used is an error. */
status dev_open(struct dev *d, enum dev_kind kind) WARN_UNUSED;
/* The GPU for rank `local` of this machine's ranks: that many-th visible one, or the only one that its launcher lets it see. */
status dev_open_local(struct dev *d, enum dev_kind kind, int local) WARN_UNUSED;
/* What names the GPU among all of the machine, whatever is visible: its PCI address; "" on the host. */
enum { DEV_ADDRESS = 32 };
status dev_address(const struct dev *d, char address[DEV_ADDRESS]) WARN_UNUSED;
void dev_close(struct dev *d);
/* Memory that is free now is what there was: libraries have taken theirs. */
void dev_measure(struct dev *d);
/* Bytes of the GPU's memory that are gone since it was opened: arenas, and what CUDA's libraries took. 0 on the host. */
size_t dev_bytes_used(const struct dev *d);

/* An arena of `size` zeroed bytes in the device's memory. arena_free gives it back. */
status dev_arena_reserve(const struct dev *d, struct arena *a, const char *name, size_t size) WARN_UNUSED;
/* Host memory that the GPU copies from and to without staging; plain memory on the host. */
status dev_pinned_open(const struct dev *d, size_t size, void **out) WARN_UNUSED;
void dev_pinned_close(const struct dev *d, void *p);
/* The same as an arena of `size` zeroed bytes, in huge pages where there are any: much of a host's memory, which all threads touch first. */
status dev_pinned_arena(const struct dev *d, struct arena *a, const char *name, size_t size) WARN_UNUSED;

/* An in-order queue of the device. `ops` belongs to the op set that was opened on it (ops/cuda). */
struct stream {
    const struct dev *dev;
    void *queue;    /* cudaStream_t */
    void *ops;
    bool side;      /* another stream computes at the same time: this one's small kernels come first, and its exchanges leave the
                     * multiprocessors alone (comm/) */
    bool sync;      /* wait after every op: the failing op is the one that is named */
    status (*look)(void *look_at); /* where set, called a few times per second while dev_sync waits: what it fails with ends the wait (comm/) */
    void *look_at;
};
status dev_stream_open(const struct dev *d, struct stream *s) WARN_UNUSED;  /* of a GPU; the host has none */
status dev_stream_open_side(const struct dev *d, struct stream *s) WARN_UNUSED;
void dev_stream_close(struct stream *s);

/* Between host and device memory, queued; from pageable memory the call returns when the source has been read, from pinned memory at
 * once. s == NULL: memcpy and memset. */
status dev_upload(struct stream *s, void *to, const void *from, size_t bytes) WARN_UNUSED;
status dev_download(struct stream *s, void *to, const void *from, size_t bytes) WARN_UNUSED;
status dev_copy(struct stream *s, void *to, const void *from, size_t bytes) WARN_UNUSED;    /* on the device */
/* `count` lines of `bytes` each, which begin so many bytes apart; on the device. */
struct dev_lines { void *to; const void *from; size_t to_stride, from_stride, bytes, count; };
status dev_copy_lines(struct stream *s, const struct dev_lines *l) WARN_UNUSED;
status dev_zero(struct stream *s, void *to, size_t bytes) WARN_UNUSED;
/* Waits until everything queued has run, and surfaces what failed in it. */
status dev_sync(struct stream *s) WARN_UNUSED;

/* A mark in a stream. */
struct event { void *mark; };
status dev_event_open(const struct dev *d, struct event *e) WARN_UNUSED;
void dev_event_close(const struct dev *d, struct event *e);
status dev_event_record(struct stream *s, struct event *e) WARN_UNUSED;
/* For dev_event_ms alone: what is captured records its time whenever the graph runs. */
status dev_event_stamp(struct stream *s, struct event *e) WARN_UNUSED;
/* A mark without a time, for order alone. */
status dev_fence_open(const struct dev *d, struct event *e) WARN_UNUSED;
/* What is queued on s from now on waits for what was queued before the mark was recorded. */
status dev_stream_wait(struct stream *s, const struct event *e) WARN_UNUSED;
/* Milliseconds between two recorded events; waits for `end`. */
status dev_event_ms(const struct dev *d, const struct event *begin, const struct event *end, double *ms) WARN_UNUSED;

/* Work captured once and replayed with one call. Between begin and end, ops on the stream are recorded and do not run. */
struct graph { void *exec; int64_t nodes; };
status dev_graph_begin(struct stream *s) WARN_UNUSED;
/* Ends the capture. With keep false the record is thrown away (an op failed while capturing). */
status dev_graph_end(struct stream *s, struct graph *g, bool keep) WARN_UNUSED;
status dev_graph_launch(struct stream *s, const struct graph *g) WARN_UNUSED;
void dev_graph_close(const struct dev *d, struct graph *g);
#endif

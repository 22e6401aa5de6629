/* Devices hold arenas and run queued ops. There are two drivers: the host (a stream is NULL, and a call is complete
 * when it returns) and CUDA (driver.c, in builds with the toolkit).
 *
 * A step only uploads, downloads, launches, and waits once at its end. Memory, events and graphs are made at start.
 * Errors are STATUS_DEVICE (STATUS_OUT_OF_MEMORY for memory) and name the call; the scope path gives the place. */
#ifndef INGOT_DEV_DEV_H
#define INGOT_DEV_DEV_H
#include "base/arena.h"
#include "base/status.h"

enum dev_kind { DEV_AUTO, DEV_CPU, DEV_CUDA };  /* AUTO: a GPU if there is one that this build can use */

struct dev_driver;
struct dev {
    enum dev_kind kind;         /* never AUTO once open */
    const struct dev_driver *driver; /* NULL: the host */
    int index;                  /* number of the GPU */
    char name[96];              /* "NVIDIA H200", "cpu" */
    int sm;                     /* compute capability: 90 */
    int multiprocessors;
    size_t bytes_total, bytes_free; /* GPU memory at the time of dev_open; 0 on the host */
    int driver_version, runtime_version; /* in CUDA's numbering: 13000; 0 on the host */
};

/* Opens a device. STATUS_DEVICE in one line: no driver, no GPU, a GPU older than the build supports, a build without
 * CUDA. DEV_AUTO falls back to the host without a GPU; a GPU that is present but unusable is an error. */
status dev_open(struct dev *d, enum dev_kind kind) WARN_UNUSED;
/* Opens the GPU for rank `local` of the ranks on this host: the visible GPU of that number, or the only visible one
 * if the launcher shows each rank one GPU. */
status dev_open_local(struct dev *d, enum dev_kind kind, int local) WARN_UNUSED;
/* PCI address of the GPU, which identifies it on the host whatever is visible; "" on the host device. */
enum { DEV_ADDRESS = 32 };
status dev_address(const struct dev *d, char address[DEV_ADDRESS]) WARN_UNUSED;
void dev_close(struct dev *d);
/* Updates the baseline of free memory after libraries have allocated theirs. */
void dev_measure(struct dev *d);
/* GPU memory used since dev_open: arenas, and allocations of CUDA's libraries. 0 on the host. */
size_t dev_bytes_used(const struct dev *d);

/* Allocates an arena of `size` zeroed bytes in device memory. arena_free frees it. */
status dev_arena_reserve(const struct dev *d, struct arena *a, const char *name, size_t size) WARN_UNUSED;
/* Allocates pinned host memory, which the GPU copies without staging; ordinary memory on the host device. */
status dev_pinned_open(const struct dev *d, size_t size, void **out) WARN_UNUSED;
void dev_pinned_close(const struct dev *d, void *p);
/* The same as an arena of `size` zeroed bytes, in huge pages where available. For large allocations: all threads
 * touch the memory first. */
status dev_pinned_arena(const struct dev *d, struct arena *a, const char *name, size_t size) WARN_UNUSED;

/* An in-order queue of the device. `ops` belongs to the op set opened on it (ops/cuda). */
struct stream {
    const struct dev *dev;
    void *queue;    /* cudaStream_t */
    void *ops;
    /* side stream, overlapped with another stream: its small kernels get priority, and its collectives use no
     * multiprocessors (comm/) */
    bool side;
    bool sync;      /* waits after every op; an error then names the failing op */
    /* when set, called a few times per second while dev_sync waits; its error ends the wait (comm/) */
    status (*look)(void *look_at);
    void *look_at;
};
status dev_stream_open(const struct dev *d, struct stream *s) WARN_UNUSED;  /* on a GPU; the host has no streams */
status dev_stream_open_side(const struct dev *d, struct stream *s) WARN_UNUSED;
void dev_stream_close(struct stream *s);

/* Copies between host and device memory, queued. With pageable memory the call returns when the source has been read,
 * with pinned memory immediately. s == NULL: memcpy and memset. */
status dev_upload(struct stream *s, void *to, const void *from, size_t bytes) WARN_UNUSED;
status dev_download(struct stream *s, void *to, const void *from, size_t bytes) WARN_UNUSED;
status dev_copy(struct stream *s, void *to, const void *from, size_t bytes) WARN_UNUSED;    /* device to device */
/* `count` lines of `bytes` each, at the given strides in bytes; between devices, or to pinned host memory. */
struct dev_lines { void *to; const void *from; size_t to_stride, from_stride, bytes, count; };
status dev_copy_lines(struct stream *s, const struct dev_lines *l) WARN_UNUSED;
status dev_zero(struct stream *s, void *to, size_t bytes) WARN_UNUSED;
/* Waits until all queued work has run, and returns its errors. */
status dev_sync(struct stream *s) WARN_UNUSED;

/* An event in a stream. */
struct event { void *mark; };
status dev_event_open(const struct dev *d, struct event *e) WARN_UNUSED;
void dev_event_close(const struct dev *d, struct event *e);
status dev_event_record(struct stream *s, struct event *e) WARN_UNUSED;
/* Records an event for dev_event_ms only: when captured, it records its time on every replay of the graph. */
status dev_event_stamp(struct stream *s, struct event *e) WARN_UNUSED;
/* Opens an event without a timestamp, for ordering only. */
status dev_fence_open(const struct dev *d, struct event *e) WARN_UNUSED;
/* Work queued on s from now on waits for the work queued before the event was recorded. */
status dev_stream_wait(struct stream *s, const struct event *e) WARN_UNUSED;
/* Milliseconds between two recorded events; waits for `end`. */
status dev_event_ms(const struct dev *d, const struct event *begin, const struct event *end, double *ms) WARN_UNUSED;

/* Work captured once and replayed with one call. Between begin and end, ops on the stream are recorded and do not
 * run. */
struct graph { void *exec; int64_t nodes; };
status dev_graph_begin(struct stream *s) WARN_UNUSED;
/* Ends the capture. With keep false the recording is discarded (an op failed during the capture). */
status dev_graph_end(struct stream *s, struct graph *g, bool keep) WARN_UNUSED;
status dev_graph_launch(struct stream *s, const struct graph *g) WARN_UNUSED;
void dev_graph_close(const struct dev *d, struct graph *g);
#endif

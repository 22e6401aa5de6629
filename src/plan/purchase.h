/* purchase: how many devices of which kind finish a run before a deadline, and at what cost. */
#ifndef INGOT_PLAN_PURCHASE_H
#define INGOT_PLAN_PURCHASE_H
#include "plan/duration.h"
#include "plan/outlook.h"

enum { PURCHASE_KINDS = 16, PURCHASE_TRIED = 40, PURCHASE_DEVICES_MAX = 65536 };
struct purchase_kind {
    char machine[64];           /* "h100": any number of them; "512xh100", "64x8xh100": these */
    double price;               /* per device hour; 0: not known */
};
struct purchase_args {
    struct purchase_kind kinds[PURCHASE_KINDS];
    int count;
    double deadline;            /* seconds of wall time; 0: none */
    struct outlook_args outlook; /* its price is the kind's */
    struct plan_command command;
};
/* A cluster with its mesh (plan/mesh_choose.h). */
struct purchase_offer {
    struct cluster cluster;
    struct mesh_result mesh;
    struct outlook outlook;
    double device_bytes;        /* memory that a run can use on a device */
    bool in_time;               /* meets the deadline */
    bool impossible;            /* no mesh is possible, whatever the memory */
    double faster;              /* seconds per step of a mesh that is predicted only; 0: none is faster */
    char lacks[PLAN_WHY];       /* why no command starts the mesh; "": one does */
};
struct purchase_answer {
    struct purchase_offer *tried; /* [count], owned; clusters that fit, by number of devices */
    int count;
    int best;                   /* index of the smallest that meets the deadline; without one, of the cheapest; -1:
                                   none. Only of those that a command starts, if there are any and
                                   plan_command.predicted is not set */
    int nearest;                /* index of the fastest; -1: none fits */
    char why[512];              /* why none fits; else "" */
    bool impossible;            /* of the first that does not fit: no mesh is possible, whatever the memory */
};
/* Tries numbers of devices in ascending order. With a deadline: from the fewest whose peak FLOP/s suffice, until a
 * cluster meets it or more devices are no faster. Without: from the smallest that fits, doubling. STATUS_OUT_OF_MEMORY:
 * memory was refused. */
status purchase_look(const struct spec *s, const struct purchase_args *a, const struct purchase_kind *kind,
                     struct purchase_answer *out) WARN_UNUSED;
void purchase_answer_free(struct purchase_answer *a);

/* `ingot plan RUN.yaml --machine KIND --deadline 60d`, `--compare KIND,KIND`: the answers as text or JSON, and a page
 * (`html`; NULL: none). STATUS_CONFIG when a deadline is given and no kind meets it: names the nearest.
 * STATUS_OUT_OF_MEMORY when nothing fits. */
status purchase_print(const struct spec *s, const struct purchase_args *a, const char *html, bool json) WARN_UNUSED;
/* Its page, from the answers of all kinds. Nothing is written when nothing fits. */
status purchase_page(const struct spec *s, const struct purchase_args *a, const struct purchase_answer *answers,
                     const char *path) WARN_UNUSED;
#endif

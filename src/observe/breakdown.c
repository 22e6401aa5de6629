/* Breakdown of a step's wall time on the device. Each instant belongs to the activity that runs in it (to
 * the one that began first, when several run), or to the gaps. Communication between ranks gets only the
 * time in which nothing else runs: its exposed cost.
 *
 *     kernel A  |=========|                A gets 10
 *     kernel B       |=========|           B gets  5: the time after A's end
 *     copy                           |==|  gets    3, the time before it is a gap
 *     collective  |===============|        gets    3: the time after B's end
 *
 * Parts and gaps therefore add up to the wall time with any overlap. */
#include "observe/kernels_int.h"
#include "observe/observe_int.h"

#include <stdlib.h>
#include <string.h>

static int by_start(const void *a, const void *b)
{
    const struct activity *x = a, *y = b;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

/* Copies of each direction, sorted by start: bytes, and the time with at least one in flight. */
static void add_links(struct breakdown_sum *sum, const struct activity *a, int64_t count)
{
    int64_t covered_to[LINK_COUNT] = {INT64_MIN, INT64_MIN, INT64_MIN};
    for (int64_t i = 0; i < count; i++) {
        const enum kernel_link way = a[i].link;
        if (way == LINK_NONE) continue;
        const int64_t from = a[i].start_ns > covered_to[way] ? a[i].start_ns : covered_to[way];
        if (a[i].end_ns > from) sum->link_ns[way] += a[i].end_ns - from;
        if (a[i].end_ns > covered_to[way]) covered_to[way] = a[i].end_ns;
        sum->link_bytes[way] += (double)a[i].bytes;
        sum->link_count[way]++;
    }
}

static void put_own(struct breakdown_sum *sum, const struct activity *a, enum kernel_part part, int64_t own)
{
    struct breakdown_row *row = &sum->rows[a->name];
    row->count++;
    row->ns += own;
    row->alone_ns += a->end_ns - a->start_ns;
    sum->part_ns[part] += own;
    sum->part_count[part]++;
}

/* Compute kernels and local copies, sorted by start. Returns the time with at least one running. */
static int64_t add_computed(struct breakdown_sum *sum, const struct activity *a, int64_t count,
                            const enum kernel_part *parts)
{
    int64_t covered_to = INT64_MIN, busy_ns = 0;
    for (int64_t i = 0; i < count; i++) {
        if (parts[a[i].name] == KERNEL_COMMUNICATION) continue;
        int64_t from = a[i].start_ns > covered_to ? a[i].start_ns : covered_to;
        int64_t own = a[i].end_ns > from ? a[i].end_ns - from : 0;
        if (a[i].end_ns > covered_to) covered_to = a[i].end_ns;
        put_own(sum, &a[i], parts[a[i].name], own);
        busy_ns += own;
    }
    return busy_ns;
}

/* A cursor over the compute activities, for spans in ascending order. */
struct walk {
    const struct activity *a;
    const enum kernel_part *parts;
    int64_t count, at, covered_to;
};

/* The part of a span without compute. */
static int64_t uncovered(struct walk *w, int64_t from, int64_t to)
{
    int64_t own = 0;
    while (from < to) {
        for (; w->at < w->count && w->a[w->at].start_ns <= from; w->at++)
            if (w->parts[w->a[w->at].name] != KERNEL_COMMUNICATION && w->a[w->at].end_ns > w->covered_to)
                w->covered_to = w->a[w->at].end_ns;
        if (w->covered_to > from) {
            from = w->covered_to;
            continue;
        }
        const int64_t next = w->at < w->count && w->a[w->at].start_ns < to ? w->a[w->at].start_ns : to;
        own += next - from;
        from = next;
    }
    return own;
}

/* Collectives get the time without compute. Returns that time. */
static int64_t add_communication(struct breakdown_sum *sum, const struct activity *a, int64_t count,
                                 const enum kernel_part *parts)
{
    struct walk w = {.a = a, .parts = parts, .count = count, .covered_to = INT64_MIN};
    int64_t covered_to = INT64_MIN, busy_ns = 0;
    for (int64_t i = 0; i < count; i++) {
        if (parts[a[i].name] != KERNEL_COMMUNICATION) continue;
        const int64_t from = a[i].start_ns > covered_to ? a[i].start_ns : covered_to;
        const int64_t own = uncovered(&w, from, a[i].end_ns);
        if (a[i].end_ns > from) sum->communication_ns += a[i].end_ns - from;
        if (a[i].end_ns > covered_to) covered_to = a[i].end_ns;
        put_own(sum, &a[i], KERNEL_COMMUNICATION, own);
        busy_ns += own;
    }
    return busy_ns;
}

void breakdown_add(struct breakdown_sum *sum, struct activity *a, int64_t count,
                   const enum kernel_part *parts, int64_t wall_ns, int64_t steps)
{
    if (count > 0) qsort(a, (size_t)count, sizeof *a, by_start);
    const int64_t busy_ns = add_computed(sum, a, count, parts) + add_communication(sum, a, count, parts);
    add_links(sum, a, count);
    if (wall_ns < busy_ns) wall_ns = busy_ns; /* two clocks, read at different times */
    sum->part_ns[KERNEL_GAP] += wall_ns - busy_ns;
    sum->wall_ns += wall_ns;
    sum->steps += steps;
}

/* Indices of the most expensive names, in order; returns how many. */
static int costliest(int list[BREAKDOWN_KERNELS], const struct breakdown_sum *sum, int names)
{
    int count = 0;
    for (int i = 0; i < names; i++) {
        if (sum->rows[i].count == 0) continue;
        int at = count < BREAKDOWN_KERNELS ? count++ : BREAKDOWN_KERNELS;
        for (; at > 0 && sum->rows[list[at - 1]].ns < sum->rows[i].ns; at--)
            if (at < BREAKDOWN_KERNELS) list[at] = list[at - 1];
        if (at < BREAKDOWN_KERNELS) list[at] = i;
    }
    return count;
}

void breakdown_mean(struct breakdown *out, const struct breakdown_sum *sum, const struct names *names,
                    const enum kernel_part *parts)
{
    double shares[KERNEL_PART_COUNT], percents[KERNEL_PART_COUNT];
    int list[BREAKDOWN_KERNELS];
    *out = (struct breakdown){.steps = sum->steps, .lost = sum->lost};
    if (sum->steps == 0) return;
    double steps = (double)sum->steps;
    for (int i = 0; i < KERNEL_PART_COUNT; i++) shares[i] = (double)sum->part_ns[i];
    percent_list(percents, shares, KERNEL_PART_COUNT);
    for (int i = 0; i < KERNEL_PART_COUNT; i++)
        out->parts[i] = (struct breakdown_part){.seconds = shares[i] * 1e-9 / steps,
                                                .percent = percents[i],
                                                .kernels = (double)sum->part_count[i] / steps};
    for (int way = 0; way < LINK_COUNT; way++)
        out->links[way] = (struct breakdown_link){.bytes = sum->link_bytes[way] / steps,
                                                  .seconds = (double)sum->link_ns[way] * 1e-9 / steps,
                                                  .copies = (double)sum->link_count[way] / steps};
    out->step_s = (double)sum->wall_ns * 1e-9 / steps;
    out->busy_s = out->step_s - out->parts[KERNEL_GAP].seconds;
    out->communication_s = (double)sum->communication_ns * 1e-9 / steps;
    out->kernel_count = costliest(list, sum, names->count);
    for (int i = 0; i < names->count; i++) out->kernel_kinds += sum->rows[i].count > 0;
    for (int i = 0; i < out->kernel_count; i++) {
        const struct breakdown_row *row = &sum->rows[list[i]];
        struct breakdown_kernel *k = &out->kernels[i];
        kernel_name_short(names->text[list[i]], k->name, sizeof k->name);
        k->part = parts[list[i]];
        k->calls = (double)row->count / steps;
        k->mean_s = (double)row->alone_ns * 1e-9 / (double)row->count;
        k->percent = sum->wall_ns ? 100 * (double)row->ns / (double)sum->wall_ns : 0;
    }
}

/* Gaps of a step without recording: its wall time minus the kernels' time. */
static double plain_gaps(const struct breakdown *b, double plain_s)
{
    return plain_s > b->busy_s ? plain_s - b->busy_s : 0;
}

static const char *const link_texts[LINK_COUNT] = {"", "host to device", "device to host"};
static const char *const link_keys[LINK_COUNT] = {"", "host_to_device", "device_to_host"};

/* Bytes/s while copies of this direction are in flight. */
static double link_speed(const struct breakdown_link *l)
{
    return l->seconds > 0 ? l->bytes / l->seconds : 0;
}

/* Fewer bytes are a step's scalars and tokens: not shown as use of the link. */
enum { LINK_SHOWN = 16 << 20 };

static void print_links(FILE *out, const struct breakdown *b)
{
    for (int way = LINK_UP; way < LINK_COUNT; way++) {
        const struct breakdown_link *l = &b->links[way];
        if (l->bytes < LINK_SHOWN) continue;
        fprintf(out, "  link, %-14s %8.3f GB/step in %9.3f ms (%.1f %% of it): %6.1f GB/s", link_texts[way],
                l->bytes * 1e-9, l->seconds * 1e3, 100 * l->seconds / b->step_s, link_speed(l) * 1e-9);
        if (b->link_rate > 0)
            fprintf(out, ", %.0f %% of the %.1f that it allows each way", 100 * link_speed(l) / b->link_rate,
                    b->link_rate * 1e-9);
        fprintf(out, "\n");
    }
}

static json_t *links_json(const struct breakdown *b)
{
    json_t *links = json_object();
    for (int way = LINK_UP; way < LINK_COUNT; way++) {
        const struct breakdown_link *l = &b->links[way];
        json_object_set_new(links, link_keys[way],
                            json_pack("{s:f, s:f, s:f, s:f}", "bytes", l->bytes, "ms", l->seconds * 1e3,
                                      "copies", l->copies, "gbs", link_speed(l) * 1e-9));
    }
    if (b->link_rate > 0) json_object_set_new(links, "allowed_gbs", json_real(b->link_rate * 1e-9));
    return links;
}

void breakdown_print(FILE *out, const struct breakdown *b, double plain_s)
{
    if (b->steps == 0) {
        fprintf(out, "device times: no step was recorded\n");
        return;
    }
    fprintf(out, "device times: mean of %lld steps, %.3f ms each while recording\n", (long long)b->steps,
            b->step_s * 1e3);
    fprintf(out, "  %-18s %10s %7s %8s\n", "part", "ms/step", "%", "kernels");
    for (int i = 0; i < KERNEL_PART_COUNT; i++)
        fprintf(out, "  %-18s %10.3f %7.1f %8.5g\n", kernel_part_text(i), b->parts[i].seconds * 1e3,
                b->parts[i].percent, b->parts[i].kernels);
    if (plain_s > 0)
        fprintf(out, "  without recording a step takes %.3f ms, of which gaps are %.3f ms (%.1f %%)\n",
                plain_s * 1e3, plain_gaps(b, plain_s) * 1e3, 100 * plain_gaps(b, plain_s) / plain_s);
    if (b->communication_s > 0)
        fprintf(out, "  communication takes %.3f ms, of which %.3f ms overlap with computing\n",
                b->communication_s * 1e3,
                (b->communication_s - b->parts[KERNEL_COMMUNICATION].seconds) * 1e3);
    print_links(out, b);
    if (b->lost) fprintf(out, "  %lld activities were lost: the gaps are too large\n", (long long)b->lost);
    fprintf(out, "  %8s %10s %7s  the %d costliest of %d kernels\n", "calls", "mean us", "%", b->kernel_count,
            b->kernel_kinds);
    for (int i = 0; i < b->kernel_count; i++) {
        const struct breakdown_kernel *k = &b->kernels[i];
        fprintf(out, "  %8.5g %10.2f %7.2f  %s (%s)\n", k->calls, k->mean_s * 1e6, k->percent, k->name,
                kernel_part_text(k->part));
    }
}

json_t *breakdown_json(const struct breakdown *b, double plain_s)
{
    json_t *parts = json_object(), *kernels = json_array();
    for (int i = 0; i < KERNEL_PART_COUNT; i++)
        json_object_set_new(parts, kernel_part_key(i),
                            json_pack("{s:f, s:f, s:f}", "step_ms", b->parts[i].seconds * 1e3, "percent",
                                      b->parts[i].percent, "kernels", b->parts[i].kernels));
    for (int i = 0; i < b->kernel_count; i++) {
        const struct breakdown_kernel *k = &b->kernels[i];
        json_array_append_new(kernels, json_pack("{s:s, s:s, s:f, s:f, s:f}", "name", k->name, "part",
                                                 kernel_part_key(k->part), "calls", k->calls, "mean_us",
                                                 k->mean_s * 1e6, "percent", k->percent));
    }
    json_t *root =
        json_pack("{s:I, s:f, s:f, s:f, s:I, s:o, s:o, s:o}", "steps", (json_int_t)b->steps, "step_ms",
                  b->step_s * 1e3, "busy_ms", b->busy_s * 1e3, "communication_ms", b->communication_s * 1e3,
                  "lost", (json_int_t)b->lost, "parts", parts, "links", links_json(b), "kernels", kernels);
    if (plain_s > 0) {
        json_object_set_new(root, "plain_step_ms", json_real(plain_s * 1e3));
        json_object_set_new(root, "plain_gaps_percent", json_real(100 * plain_gaps(b, plain_s) / plain_s));
    }
    return root;
}

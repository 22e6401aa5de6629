// Embedding: gather; backward is a sorted segmented sum. Bound: memory bandwidth.
//
//   order     rows of dx with the same token are added in token order. Rows are sorted by token (stable), so every run
//             has the same bits, and every table row has one writer.
//   window    32 sorted rows: one warp per window and range of columns
//   run       the sorted rows of one token. Inside a window it goes to the table at once; a longer one goes in pieces
//             of one window each to `pieces`.
//
//   sorted   | 3 3 3 5 7 7 .. 9 | 9 9 9 9 .. 9 | 9 9 12 12 .. |
//   pass 1     3, 5, 7: table     9: piece       9: last piece
//              9: first piece                    12: ..
//   pass 2     9: first piece + next pieces, in order, by the window in which the run begins
//
// So a token that fills a third of the batch is summed by many warps. The same code sums position embeddings.
//
//   id                              forward   backward
//   outside the table               NaN       ignored (the loader excludes it)
//   TOKEN_NONE                      zeros     ignored
//   of a row that another rank has  zeros     ignored
#include "ops/cuda/device.cuh"
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <math.h>

namespace {

enum { WARPS = 8, THREADS = WARPS * WARP };
enum { WINDOW = WARP, QUAD = 4, QUADS = 2, LANE_COLUMNS = QUADS * QUAD, COLUMNS = WARP * LANE_COLUMNS /* of a warp */ };
enum { SIDE = 4 /* rows that a warp loads at once */ };
enum { SORT_THREADS = 256 };
typedef uint32_t key;

// ---- forward

template <typename T> struct embed_row {
    const T *table, *pos; // rows; NULL: none
    T *x;
    float blank; // ids without a row of the table
};
template <typename T> __device__ inline embed_row<T> embed_row_at(const embed_fwd_args &a, int64_t t)
{
    const int32_t token = a.tokens[t];
    const int64_t row = token - a.first;
    embed_row<T> r = {nullptr, nullptr, static_cast<T *>(a.x) + t * a.d, NAN};
    if (token == TOKEN_NONE && a.pos_table == nullptr) r.blank = 0;
    if (token >= 0 && token < a.ids) r.blank = 0; // the row of the id in the shard of this rank
    if (token >= 0 && row >= 0 && row < a.vocab) r.table = static_cast<const T *>(a.table) + row * a.d;
    if (a.pos_table) {
        const int32_t position = a.positions[t];
        if (position >= 0 && position < a.pos_count)
            r.pos = static_cast<const T *>(a.pos_table) + position * a.d;
        else
            r.table = nullptr, r.blank = NAN;
    }
    return r;
}

template <typename T> __device__ inline pack<T> embed_pack(const embed_row<T> &r, int64_t j)
{
    pack<T> x;
    if (r.table == nullptr)
        for (int k = 0; k < pack<T>::COUNT; k++) x.v[k] = from_f32<T>(r.blank);
    else
        x = load_pack(r.table + j);
    if (r.pos == nullptr) return x;
    const pack<T> p = load_pack(r.pos + j);
    for (int k = 0; k < pack<T>::COUNT; k++) x.v[k] = from_f32<T>(to_f32(x.v[k]) + to_f32(p.v[k]));
    return x;
}

// LANES neighbours per row: a warp or part of it, so that several narrow rows are in flight. WIDE: rows consist of
// 16-byte accesses.
template <typename T, bool WIDE, int LANES>
__global__ void __launch_bounds__(THREADS) embed_fwd_kernel(const embed_fwd_args a)
{
    const int64_t t = int64_t(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    if (t >= a.rows) return;
    const embed_row<T> r = embed_row_at<T>(a, t);
    if constexpr (WIDE) {
        enum { STEP = LANES * int(pack<T>::COUNT) };
        for (int64_t base = lane * int(pack<T>::COUNT); base < a.d; base += SIDE * STEP) {
            pack<T> x[SIDE];
#pragma unroll
            for (int u = 0; u < SIDE; u++)
                if (base + u * STEP < a.d) x[u] = embed_pack(r, base + u * STEP);
#pragma unroll
            for (int u = 0; u < SIDE; u++)
                if (base + u * STEP < a.d) store_pack(r.x + base + u * STEP, x[u]);
        }
    } else {
        for (int64_t j = lane; j < a.d; j += LANES) {
            float x = r.table ? to_f32(r.table[j]) : r.blank;
            if (r.pos) x += to_f32(r.pos[j]);
            r.x[j] = from_f32<T>(x);
        }
    }
}

template <typename T, bool WIDE> void embed_fwd_launch(const embed_fwd_args &a, dev_stream s)
{
    enum { FEW = 8, EACH = WIDE ? int(pack<T>::COUNT) : 1 };
    if (a.d <= FEW * EACH)
        embed_fwd_kernel<T, WIDE, FEW>
            <<<unsigned((a.rows + THREADS / FEW - 1) / (THREADS / FEW)), THREADS, 0, queue_of(s)>>>(a);
    else
        embed_fwd_kernel<T, WIDE, WARP><<<unsigned((a.rows + WARPS - 1) / WARPS), THREADS, 0, queue_of(s)>>>(a);
}

status embed_fwd(const struct embed_fwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    const bool wide = a->d * int64_t(dtype_bytes(a->dt)) % 16 == 0 && aligned16(a->table) && aligned16(a->pos_table) &&
                      aligned16(a->x);
    BY_DTYPE(a->dt, {
        if (wide)
            embed_fwd_launch<T, true>(*a, s);
        else
            embed_fwd_launch<T, false>(*a, s);
    });
    return cuda_set_launched(s, "embed_fwd");
}

// ---- backward

// The table of one launch: rows of dx in the order of their sorted keys.
struct scatter {
    const void *dx;
    float *table;       // [table_rows, d]
    const key *keys;    // [rows], sorted; >= table_rows: no row of the table
    const int32_t *from; // [rows]: row of dx
    // [windows, 2, width]: of a run that comes from the window before, and of one that begins here and goes on
    float *pieces;
    int64_t rows, d, table_rows;
    int64_t first, width; // columns of this launch: [first, first + width)
};

// A key is the table's row: of id `first_id` the first.
__global__ void __launch_bounds__(SORT_THREADS)
    keys_kernel(const int32_t *ids, int64_t first_id, int64_t rows, int64_t table_rows, key *keys, int32_t *from)
{
    const int64_t t = int64_t(blockIdx.x) * SORT_THREADS + threadIdx.x;
    if (t >= rows) return;
    const int64_t row = ids[t] - first_id;
    keys[t] = ids[t] >= 0 && row >= 0 && row < table_rows ? key(row) : key(table_rows);
    from[t] = int32_t(t);
}

// The columns of a lane: QUADS groups of neighbours with WIDE, one of every 32 without; a warp's accesses are whole
// lines either way.
struct columns {
    float x[LANE_COLUMNS];
};
template <bool WIDE> __device__ inline int64_t column(int64_t begin, int lane, int k)
{
    return begin + (WIDE ? k / QUAD * WARP * QUAD + lane * QUAD + k % QUAD : k * WARP + lane);
}
__device__ inline void load_quad(const float *p, float *x)
{
    const float4 raw = *reinterpret_cast<const float4 *>(p);
    x[0] = raw.x, x[1] = raw.y, x[2] = raw.z, x[3] = raw.w;
}
__device__ inline void load_quad(const __nv_bfloat16 *p, float *x)
{
    const uint2 raw = *reinterpret_cast<const uint2 *>(p);
    x[0] = __uint_as_float(raw.x << 16), x[1] = __uint_as_float(raw.x & 0xffff0000u);
    x[2] = __uint_as_float(raw.y << 16), x[3] = __uint_as_float(raw.y & 0xffff0000u);
}
template <typename T, bool WIDE>
__device__ inline columns load_columns(const T *row, int64_t begin, int64_t end, int lane)
{
    columns c = {};
    for (int k = 0; k < LANE_COLUMNS; k += WIDE ? QUAD : 1) {
        const int64_t at = column<WIDE>(begin, lane, k);
        if (at >= end) continue;
        if constexpr (WIDE)
            load_quad(row + at, &c.x[k]);
        else
            c.x[k] = to_f32(row[at]);
    }
    return c;
}
template <bool WIDE>
__device__ inline void store_columns(float *row, int64_t begin, int64_t end, int lane, const columns &c)
{
    for (int k = 0; k < LANE_COLUMNS; k += WIDE ? QUAD : 1) {
        const int64_t at = column<WIDE>(begin, lane, k);
        if (at >= end) continue;
        if constexpr (WIDE)
            *reinterpret_cast<float4 *>(row + at) = make_float4(c.x[k], c.x[k + 1], c.x[k + 2], c.x[k + 3]);
        else
            row[at] = c.x[k];
    }
}
__device__ inline void add(columns &to, const columns &x)
{
    for (int k = 0; k < LANE_COLUMNS; k++) to.x[k] += x.x[k];
}

// The window and columns of a warp; grid: windows x column ranges, rounded up.
struct place {
    int64_t window, begin, end; // columns [begin, end) of the table
};
__device__ inline place place_of(const scatter &a, int64_t windows)
{
    const int64_t warp = int64_t(blockIdx.x) * WARPS + threadIdx.x / WARP, ranges = (a.width + COLUMNS - 1) / COLUMNS;
    const int64_t begin = a.first + warp % ranges * COLUMNS, end = a.first + a.width;
    return {warp / ranges < windows ? warp / ranges : -1, begin, begin + COLUMNS < end ? begin + COLUMNS : end};
}
// Pieces are as wide as the launch.
__device__ inline float *piece_row(const scatter &a, int64_t window, int which)
{
    return a.pieces + (window * 2 + which) * a.width - a.first;
}
enum { FROM_BEFORE = 0, GOES_ON = 1 };

// What happens to the sum after a row.
enum goal { GO_ON, DROP, TO_TABLE, TO_BEFORE, TO_GOES_ON };

// Pass 1: the runs of a window.
template <typename T, bool WIDE> __global__ void __launch_bounds__(THREADS, 2) runs_kernel(const scatter a)
{
    const unsigned all = 0xffffffffu;
    const place p = place_of(a, (a.rows + WINDOW - 1) / WINDOW);
    if (p.window < 0) return;
    const int lane = threadIdx.x % WARP;
    const int64_t at = p.window * WINDOW, left = a.rows - at;
    const int count = left < WINDOW ? int(left) : int(WINDOW);
    // Each lane knows one row of the window. Keys are sorted, so a run that contains the first row's key contains
    // the first row.
    const key none = key(a.table_rows), mine = lane < count ? a.keys[at + lane] : none;
    const int32_t from = lane < count ? a.from[at + lane] : 0;
    const key before = at > 0 ? a.keys[at - 1] : none, after = at + count < a.rows ? a.keys[at + count] : none;
    const key first = __shfl_sync(all, mine, 0), right = __shfl_down_sync(all, mine, 1);
    int goal = GO_ON;
    if (lane == count - 1 || right != mine)
        goal = mine == none                                 ? DROP
               : mine == first && mine == before            ? TO_BEFORE
               : lane == count - 1 && mine == after         ? TO_GOES_ON
                                                            : TO_TABLE;
    const T *dx = static_cast<const T *>(a.dx);
    columns sum = {};
    for (int base = 0; base < count; base += SIDE) {
        columns x[SIDE], old[SIDE];
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            if (base + u >= count) continue;
            const int64_t row = __shfl_sync(all, from, base + u), to = __shfl_sync(all, mine, base + u);
            x[u] = load_columns<T, WIDE>(dx + row * a.d, p.begin, p.end, lane);
            if (__shfl_sync(all, goal, base + u) == TO_TABLE)
                old[u] = load_columns<float, WIDE>(a.table + to * a.d, p.begin, p.end, lane);
        }
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            if (base + u >= count) continue;
            const int64_t to = __shfl_sync(all, mine, base + u);
            const int then = __shfl_sync(all, goal, base + u);
            add(sum, x[u]);
            if (then == GO_ON) continue;
            if (then == TO_TABLE) {
                add(sum, old[u]);
                store_columns<WIDE>(a.table + to * a.d, p.begin, p.end, lane, sum);
            } else if (then != DROP) {
                store_columns<WIDE>(piece_row(a, p.window, then == TO_BEFORE ? FROM_BEFORE : GOES_ON), p.begin, p.end,
                                    lane, sum);
            }
            sum = {};
        }
    }
}

// Number of windows after `window` that the run of `k` reaches: those that begin with it.
__device__ inline int64_t windows_reached(const scatter &a, int64_t window, key k)
{
    const int lane = threadIdx.x % WARP;
    for (int64_t n = 0;; n += WARP) {
        const int64_t at = (window + 1 + n + lane) * WINDOW;
        const unsigned reached = __ballot_sync(0xffffffffu, at < a.rows && a.keys[at] == k);
        if (reached != 0xffffffffu) return n + __popc(reached);
    }
}

// Pass 2: the window in which a multi-window run begins adds its pieces.
template <bool WIDE> __global__ void __launch_bounds__(THREADS) pieces_kernel(const scatter a)
{
    enum { PIECES = 8 };
    const place p = place_of(a, (a.rows + WINDOW - 1) / WINDOW);
    if (p.window < 0) return;
    const int lane = threadIdx.x % WARP;
    const int64_t at = p.window * WINDOW, next = at + WINDOW;
    if (next >= a.rows) return;
    const key k = a.keys[next - 1];
    if (int64_t(k) >= a.table_rows || a.keys[next] != k || (at > 0 && a.keys[at - 1] == k)) return;
    const int64_t end = p.window + 1 + windows_reached(a, p.window, k);
    columns sum = load_columns<float, WIDE>(piece_row(a, p.window, GOES_ON), p.begin, p.end, lane);
    for (int64_t w = p.window + 1; w < end; w += PIECES) {
        columns x[PIECES];
#pragma unroll
        for (int u = 0; u < PIECES; u++)
            if (w + u < end) x[u] = load_columns<float, WIDE>(piece_row(a, w + u, FROM_BEFORE), p.begin, p.end, lane);
#pragma unroll
        for (int u = 0; u < PIECES; u++)
            if (w + u < end) add(sum, x[u]);
    }
    float *row = a.table + int64_t(k) * a.d;
    add(sum, load_columns<float, WIDE>(row, p.begin, p.end, lane));
    store_columns<WIDE>(row, p.begin, p.end, lane, sum);
}

size_t rounded_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

// The workspace of one sort, followed by the pieces.
struct sorting {
    key *keys_in, *keys;
    int32_t *from_in, *from;
    void *temp;
    size_t temp_bytes, fixed; // fixed: all but the pieces
    float *pieces;
    int64_t pieces_count; // capacity in floats
    int bits;             // bits of a key
};
sorting sorting_sizes(const scatter &a, dev_stream s)
{
    sorting r = {};
    while ((int64_t(1) << r.bits) <= a.table_rows) r.bits++;
    (void)cub::DeviceRadixSort::SortPairs(nullptr, r.temp_bytes, r.keys_in, r.keys, r.from_in, r.from, int(a.rows), 0,
                                          r.bits, queue_of(s));
    r.fixed = 4 * rounded_up(size_t(a.rows) * 4) + rounded_up(r.temp_bytes);
    return r;
}
size_t pieces_bytes(const scatter &a, int64_t columns)
{
    return size_t(a.rows + WINDOW - 1) / WINDOW * 2 * size_t(columns) * sizeof(float);
}
// Rows that the workspace can hold, with the pieces of at least one launch: all of them, or equal parts.
int64_t rows_at_once(scatter a, dev_stream s)
{
    const int64_t least = a.d < COLUMNS ? a.d : int64_t(COLUMNS);
    while (a.rows > 1 && sorting_sizes(a, s).fixed + pieces_bytes(a, least) > cuda_set(s)->workspace_bytes)
        a.rows = (a.rows + 1) / 2;
    return a.rows;
}
sorting sorting_of(const scatter &a, dev_stream s)
{
    sorting r = sorting_sizes(a, s);
    const size_t ids = rounded_up(size_t(a.rows) * 4), left = cuda_set(s)->workspace_bytes - r.fixed,
                 want = pieces_bytes(a, a.d), room = left < want ? left : want;
    char *at = static_cast<char *>(cuda_set_workspace(s, r.fixed + room, "embed_bwd"));
    r.keys_in = reinterpret_cast<key *>(at);
    r.keys = reinterpret_cast<key *>(at + ids);
    r.from_in = reinterpret_cast<int32_t *>(at + 2 * ids);
    r.from = reinterpret_cast<int32_t *>(at + 3 * ids);
    r.temp = at + 4 * ids;
    r.pieces = reinterpret_cast<float *>(at + r.fixed);
    r.pieces_count = int64_t(room / sizeof(float));
    return r;
}

template <typename T, bool WIDE> void launch_sums(const scatter &a, dev_stream s)
{
    const int64_t windows = (a.rows + WINDOW - 1) / WINDOW, ranges = (a.width + COLUMNS - 1) / COLUMNS;
    const unsigned blocks = unsigned((windows * ranges + WARPS - 1) / WARPS);
    runs_kernel<T, WIDE><<<blocks, THREADS, 0, queue_of(s)>>>(a);
    if (windows > 1) pieces_kernel<WIDE><<<blocks, THREADS, 0, queue_of(s)>>>(a);
}

// If pieces of all columns do not fit, a wide table takes several launches.
void scatter_part(scatter a, const int32_t *ids, int64_t first_id, dtype dt, dev_stream s)
{
    sorting w = sorting_of(a, s);
    keys_kernel<<<unsigned((a.rows + SORT_THREADS - 1) / SORT_THREADS), SORT_THREADS, 0, queue_of(s)>>>(
        ids, first_id, a.rows, a.table_rows, w.keys_in, w.from_in);
    // Errors of its launches are checked below.
    (void)cub::DeviceRadixSort::SortPairs(w.temp, w.temp_bytes, w.keys_in, w.keys, w.from_in, w.from, int(a.rows), 0,
                                          w.bits, queue_of(s));
    a.keys = w.keys, a.from = w.from, a.pieces = w.pieces;
    const int64_t windows = (a.rows + WINDOW - 1) / WINDOW, fit = w.pieces_count / (2 * windows);
    const int64_t most = fit >= a.d ? a.d : fit / COLUMNS * COLUMNS;
    CHECK(most > 0, "embed_bwd: no workspace for the pieces of %lld rows", (long long)a.rows);
    const bool wide = a.d % QUAD == 0 && aligned16(a.dx) && aligned16(a.table);
    for (a.first = 0; a.first < a.d; a.first += most) {
        a.width = a.d - a.first < most ? a.d - a.first : most;
        BY_DTYPE(dt, {
            if (wide)
                launch_sums<T, true>(a, s);
            else
                launch_sums<T, false>(a, s);
        });
    }
}

// `a` has the op's arguments; the rest is filled in. If rows cannot be sorted at once (each token of an n-gram
// memory has many), they are taken in parts, which are added to the table one after the other.
status scatter_add(scatter a, const int32_t *ids, int64_t first_id, dtype dt, dev_stream s)
{
    CHECK(a.rows <= INT32_MAX && a.table_rows < INT32_MAX, "%lld rows into %lld", (long long)a.rows,
          (long long)a.table_rows);
    const char *dx = static_cast<const char *>(a.dx);
    const int64_t rows = a.rows, most = rows_at_once(a, s);
    for (int64_t at = 0; at < rows; at += most) {
        a.rows = rows - at < most ? rows - at : most;
        a.dx = dx + size_t(at * a.d) * dtype_bytes(dt);
        scatter_part(a, ids + at, first_id, dt, s);
    }
    return cuda_set_launched(s, "embed_bwd");
}

// ---- distinct ids

// key: the id, or one past all ids if there is none.
__global__ void unique_keys_kernel(const rows_unique_args a, key *keys, int32_t *from)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    const int32_t id = a.ids[i];
    keys[i] = id >= 0 && id < a.table_rows ? key(id) : key(a.table_rows);
    from[i] = int32_t(i);
}
__device__ inline bool begins(const rows_unique_args &a, const key *keys, int64_t i)
{
    return int64_t(keys[i]) < a.table_rows && (i == 0 || keys[i] != keys[i - 1]);
}
__global__ void unique_marks_kernel(const rows_unique_args a, const key *keys, int32_t *marks)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.count) marks[i] = begins(a, keys, i);
}
// sums: of marks up to each, inclusive.
__global__ void unique_slots_kernel(const rows_unique_args a, const key *keys, const int32_t *from, const int32_t *sums)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.count) {
        a.slots[from[i]] = int64_t(keys[i]) < a.table_rows ? sums[i] - 1 : int32_t(TOKEN_NONE);
        if (begins(a, keys, i)) a.rows[sums[i] - 1] = int32_t(keys[i]);
    }
    if (i < a.room && i >= sums[a.count - 1]) a.rows[i] = TOKEN_NONE;
}

status rows_unique(const struct rows_unique_args *a, dev_stream s)
{
    CHECK(a->count <= INT32_MAX && a->table_rows < INT32_MAX && a->room <= a->count,
          "%lld ids of %lld rows, room for %lld", (long long)a->count, (long long)a->table_rows, (long long)a->room);
    if (a->count == 0) return STATUS_OK;
    static_assert(ROWS_UNIQUE_SCRATCH == 2 * (sizeof(key) + sizeof(int32_t)), "keys and places, twice");
    key *keys = static_cast<key *>(a->scratch);
    int32_t *from = reinterpret_cast<int32_t *>(keys + 2 * a->count);
    cub::DoubleBuffer<key> sorted(keys, keys + a->count);
    cub::DoubleBuffer<int32_t> places(from, from + a->count);
    const int count = int(a->count);
    int bits = 0;
    while ((int64_t(1) << bits) <= a->table_rows) bits++;
    size_t sort_bytes = 0, scan_bytes = 0;
    (void)cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, sorted, places, count, 0, bits, queue_of(s));
    (void)cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, from, from, count, queue_of(s));
    void *temp = cuda_set_workspace(s, sort_bytes > scan_bytes ? sort_bytes : scan_bytes, "rows_unique");
    const unsigned blocks = unsigned((a->count + SORT_THREADS - 1) / SORT_THREADS);
    unique_keys_kernel<<<blocks, SORT_THREADS, 0, queue_of(s)>>>(*a, sorted.Current(), places.Current());
    (void)cub::DeviceRadixSort::SortPairs(temp, sort_bytes, sorted, places, count, 0, bits, queue_of(s));
    int32_t *sums = places.Alternate();
    unique_marks_kernel<<<blocks, SORT_THREADS, 0, queue_of(s)>>>(*a, sorted.Current(), sums);
    (void)cub::DeviceScan::InclusiveSum(temp, scan_bytes, sums, sums, count, queue_of(s));
    unique_slots_kernel<<<blocks, SORT_THREADS, 0, queue_of(s)>>>(*a, sorted.Current(), places.Current(), sums);
    return cuda_set_launched(s, "rows_unique");
}

status embed_bwd(const struct embed_bwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    scatter one = {};
    one.dx = a->dx;
    one.rows = a->rows, one.d = a->d;
    one.table = static_cast<float *>(a->dtable), one.table_rows = a->vocab;
    TRY(scatter_add(one, a->tokens, a->first, a->dt, s));
    if (a->dpos == nullptr) return STATUS_OK;
    one.table = static_cast<float *>(a->dpos), one.table_rows = a->pos_count;
    return scatter_add(one, a->positions, 0, a->dt, s);
}

} // namespace

extern "C" void cuda_embed_slots(struct ops *o)
{
    o->embed_fwd = embed_fwd;
    o->embed_bwd = embed_bwd;
    o->rows_unique = rows_unique;
}

// SPDX-License-Identifier: Apache-2.0
// gemm.c — products of matrices, and the elementwise kernel that follows them
//
// Computes  t[i, j] = sum over p of a[i, p] b[p, j]     for each batch, any strides
// Macros    TB_T the type in which products add up; TB_A, TB_B the types in memory; TB_WIDE_A(x), TB_WIDE_B(x) from these
//           to TB_T; TB_PLAIN_A, TB_PLAIN_B defined where they are the same type.
// Tiles     A tile of the result is made while k runs, from rows of a and a panel of columns of b:
//
//               gemm_tiles.c  any processor: sums in vector registers; `a` may lie where it is, with any strides, `b` if
//                             its columns are side by side; their copies: gemm_fma.h
//               gemm_amx.h    with TB_PLANES: a matrix unit, which multiplies sums of bfloat16 numbers; both are copied
//
//           What does not lie well is copied first, shared by all threads. (Goto and van de Geijn, 2008; Van Zee and
//           van de Geijn, 2015.) With few rows and very many columns each task copies its own columns of b instead, and with
//           few rows, few columns and a very long k those of its segment: a few panels and some steps of k at a time, so that
//           memory is read once and the copy stays in the second-level cache; its tiles fetch the lines of the next. On the
//           matrix unit tasks of products of moderate size copy both operands: what several of them need stays in the slot of
//           the thread that they run on. Elsewhere they copy their rows of a alone where k is not long: a copy that another
//           core wrote before, or has read since, takes twice as long to write again.
// Few       few columns, with TB_FEW: gemm_few.h, along k or along the rows, whichever lie side by side in a.
// Order     An element adds up its k products one after the other, in blocks of `kc` and, where a long k is shared among
//           tasks, in segments that are added in their order. That depends on shapes alone, never on threads.
// Tail      When a task's block is complete, `tail`, an ordinary elementwise kernel over rows and columns, runs on it.
// Types     float32, float64, 64-bit integers; halves and short integers are widened as they are copied.
// Limits    OPERANDS operands of a tail, RANK axes of batches
// Checked   tests/engine/test_gemm.py, test_matrix_unit.py; timed by benchmarks/gemm.py
#include "finite.h"
#include "gemm_tile.h"
#include "runtime.h"
#include "slots.h"
#include "square.h"
#include "vector.h"

enum {
    PACK_K = 128,    // steps of k, and columns, that a task copies
    PACK_COLUMNS = 256,
    BAND = 8,        // steps of k that are copied of a panel before the next one's turn comes, where there are more panels
    LINES_AHEAD = 4, // steps of k by which lines are fetched that are copied as they lie
    COPY_AHEAD = 2,  // lines by which lines are fetched that are turned as they are copied
    AWAY = 256,      // steps of k by which rows of a are fetched where tiles are one vector wide
    AHEAD = 8,       // steps of k by which b is fetched, where it lies strewn or vectors in two lines of cache
    NEAR = 1 << 16,  // elements of b, or of sums, that are in the second-level cache wherever they lie
    FAR = 1 << 22,   // elements of a that are in no cache
    JOINED = 1 << 12, // elements whose segments a task adds up, about
    JOINED_ROWS = 64, // rows of them at most, if they are the columns of the result
    OPERANDS = 32,
    RANK = 16,
};

// What the host passes in `size`. All counts are of elements, places in scratch of bytes.
enum {
    M, N, K, BATCHES,
    SWAP,          // whether the pointers of a and b come in the other order
    ROUND,         // batches that are computed together
    SPLITS,        // segments of k that are computed side by side
    SPLIT_K,       // length of a segment
    PHASE_K,       // steps of k of a segment that are copied before they are used
    BLOCK_K,       // steps of k after which the next panel's turn comes
    PHASE_ROWS,    // rows of a that are copied together
    PHASE_COLUMNS, // columns of b that are copied together
    TASK_ROWS, TASK_COLUMNS,
    TILE_ROWS, PANEL,     // a tile's rows and columns; 1 column with TB_FEW
    PACK_A,        // whether a is copied
    PACK_B,        // the first column of b that is copied
    TOGETHER,      // columns that a task copies of b before it uses them: lines of the next ones come meanwhile
    OWN,           // bytes of that copy, in a slot of its own; 0: copies are shared
    OWN_A,         // bytes of that of a behind it, or alone: what is 0 is shared
    APART,         // bytes of the sums of a task, behind these copies; 0: they lie where the whole product does
    SLOTS, PLACE_OWN,  // how many slots there are, and their place in scratch
    PAST,          // whether sums are written past the caches
    PLACE_A, PLACE_B, PLACE_T,  // places in scratch of the copies, and of sums that have no place elsewhere
    SUMS,          // which pointer the sums go to; the last is scratch
    RUN,           // tb_run
    HALF_TILES, TILES, WIDE_TILES,  // tb_gemm_tiles of half a vector of columns, of one and of more, or 0
    TAIL,          // the kernel that follows, or 0
    INNER,         // its inner axis
    TURNED,        // the length of its square tiles, or 0
    STREAMS,       // whether it fetches what it reads (1), and writes past the caches (2)
    PRODUCT,       // which of its inputs the product is
    COUNT,         // its operands, the product included
    SCRATCH,       // its bytes
    BATCH_RANK, FIRST,  // lengths of the batch axes, then bytes of an element of the operands that are not the product
};

typedef struct call {
    void *const *ptr;
    const int64_t *size, *stride, *scalar;
    int64_t batch, row, column, phase;   // where this round begins: batch, row, column, phase of k
    int64_t batches, rows, columns, phases;  // what it has
    int64_t row_tasks, column_tasks, panels, tiles, chunks;
    char *scratch;
} call;

// x becomes x / y; what remains. Divisions are slow, and small products have many batches of one task.
static inline int64_t remainder_of(int64_t *x, int64_t y) {
    if (y == 1)
        return 0;
    const int64_t rest = *x % y;
    *x /= y;
    return rest;
}

// Strides of operand `which`: those of the batch axes, then two.
static inline const int64_t *strides_of(const call *g, int which) { return g->stride + which * (g->size[BATCH_RANK] + 2); }

// Where a batch of operand `which` begins, in elements.
static int64_t batch_offset(const call *g, int which, int64_t batch) {
    const int64_t *const stride = strides_of(g, which);
    int64_t at = 0;
    int64_t axis = g->size[BATCH_RANK] - 1;
    for (; axis > 0; --axis) at += remainder_of(&batch, g->size[FIRST + axis]) * stride[axis];
    return axis < 0 ? at : at + batch * stride[0];
}

static inline const int64_t *pair_of(const call *g, int which) { return strides_of(g, which) + g->size[BATCH_RANK]; }

// A run of panels (of `width` columns as copied) side by side: column `j` of panel q comes from column q * step + j. Panels
// lie `apart` elements from one another; what is missing of the last is zero.
typedef struct run {
    int64_t panels, columns, step, width, apart;
} run;

#if defined(TB_PLANES)
#include "gemm_amx.h"
COPY(copy_a, TB_A, TB_WIDE_A, 0)
COPY(copy_b, TB_B, TB_WIDE_B, 1)
#else
#include "gemm_fma.h"
COPY(copy_a, TB_A, TB_WIDE_A)
COPY(copy_b, TB_B, TB_WIDE_B)
#endif

// Copies --------------------------------------------------------------------------------------------------------------

// Where segment `split` of the phase in work lies along k.
static inline int64_t k_begin(const call *g, int64_t split) { return split * g->size[SPLIT_K] + g->phase * g->size[PHASE_K]; }
static inline int64_t k_end(const call *g, int64_t split) {
    const int64_t segment = least((split + 1) * g->size[SPLIT_K], g->size[K]);
    return least(k_begin(g, split) + g->size[PHASE_K], segment);
}

static inline TB_T *place_of_a(const call *g, int64_t part, int64_t t) {
    return (TB_T *)(g->scratch + g->size[PLACE_A]) + packed((part * g->tiles + t) * g->size[TILE_ROWS] * g->size[PHASE_K]);
}

static inline int64_t first_panel(const call *g) {
    const int64_t from = g->size[PACK_B] - g->column;
    return from <= 0 ? 0 : least(ceiling(from, g->size[PANEL]), g->panels);
}

static inline TB_T *place_of_b(const call *g, int64_t part, int64_t panel) {
    const int64_t first = first_panel(g), each = width_of(g, g->size[PANEL]) * g->size[PHASE_K];
    return (TB_T *)(g->scratch + g->size[PLACE_B]) + packed((part * (g->panels - first) + panel - first) * each);
}

// The part of a copy that a unit of work makes: a chunk of k, and panels `first` to `last` of `panels`.
typedef struct unit {
    int64_t part, first, last, k0, k;
} unit;

static int64_t groups_of(int64_t panels, int64_t width) { return ceiling(panels, ceiling(PACK_COLUMNS, width)); }

static unit unit_of(const call *g, int64_t number, int64_t panels, int64_t width) {
    const int64_t groups = groups_of(panels, width), each = ceiling(PACK_COLUMNS, width);
    const int64_t chunk = remainder_of(&number, g->chunks), group = remainder_of(&number, groups);
    unit u = {number, group * each, least(group * each + each, panels), chunk * PACK_K, 0};
    const int64_t split = g->size[SPLITS] > 1 ? number % g->size[SPLITS] : 0;
    u.k = least(PACK_K, k_end(g, split) - k_begin(g, split) - u.k0);
    return u;
}

// Copies panels `first` to `last` of b, `k` steps from `k0` of a segment's part of the phase, to where `to` begins; panels
// lie `apart` elements from one another, and begin with step `skipped` before k0.
static void copy_panels(const call *g, int64_t part, int64_t k0, int64_t k, int64_t first, int64_t last, TB_T *to,
                        int64_t apart, int64_t skipped) {
    const int64_t batch = g->batch + part / g->size[SPLITS], begin_k = k_begin(g, part % g->size[SPLITS]) + k0;
    const int64_t *const step = pair_of(g, 1);
    const TB_B *const base = (const TB_B *)g->ptr[!g->size[SWAP]] + batch_offset(g, 1, batch) + begin_k * step[0];
    // The last panel may be narrower as copied, too: it goes by itself.
    for (int64_t from = first, end; from < last; from = end) {
        const int64_t begin = from * g->size[PANEL];
        const int alone = g->columns - begin <= g->size[PANEL];
        end = alone ? from + 1 : least(last, g->panels - 1);
        if (end <= from)
            end = from + 1;
        const int64_t columns = least(end * g->size[PANEL], g->columns) - begin;
        const int64_t wide = width_of(g, least(columns, g->size[PANEL]));
        const run r = {end - from, columns, g->size[PANEL], wide, apart};
        copy_b(to + (from - first) * apart + packed(skipped * wide), base + (g->column + begin) * step[1], step[0], step[1], k, &r);
    }
}

static void pack_b(const call *g, int64_t number) {
    const int64_t first = first_panel(g), width = width_of(g, g->size[PANEL]);
    const unit u = unit_of(g, number, g->panels - first, width);
    if (u.k > 0)
        copy_panels(g, u.part, u.k0, u.k, first + u.first, first + u.last, place_of_b(g, u.part, first + u.first),
                    packed(width * g->size[PHASE_K]), u.k0);
}

// Copies tiles `first` to `last` of a likewise, to where tile `first` begins.
static void copy_tiles(const call *g, int64_t part, int64_t k0, int64_t k, int64_t first, int64_t last, TB_T *to,
                       int64_t apart, int64_t skipped) {
    const int64_t height = g->size[TILE_ROWS], batch = g->batch + part / g->size[SPLITS], begin = first * height;
    const int64_t *const step = pair_of(g, 0), from_k = k_begin(g, part % g->size[SPLITS]) + k0;
    const TB_A *const from = (const TB_A *)g->ptr[g->size[SWAP]] + batch_offset(g, 0, batch) + (g->row + begin) * step[0] + from_k * step[1];
    const run r = {last - first, least(last * height, g->rows) - begin, height, height, apart};
    copy_a(to + packed(skipped * height), from, step[1], step[0], k, &r);
}

static void pack_a(const call *g, int64_t number) {
    const unit u = unit_of(g, number, g->tiles, g->size[TILE_ROWS]);
    if (u.k > 0)
        copy_tiles(g, u.part, u.k0, u.k, u.first, u.last, place_of_a(g, u.part, u.first),
                   packed(g->size[TILE_ROWS] * g->size[PHASE_K]), u.k0);
}

// Tasks: chunks of the panels of b, then of the tiles of a. size {tasks of b}.
static void pack(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                 int64_t end) {
    const call *const g = ptr[0];
    (void)stride, (void)scalar;
    for (int64_t task = begin; task < end; ++task)
        if (task < size[0])
            pack_b(g, task);
        else
            pack_a(g, task - size[0]);
}

// Sums ----------------------------------------------------------------------------------------------------------------

typedef struct sums {
    TB_T *at;
    int64_t row, column;
} sums;

// Where the sums of element (0, 0) of a batch go; segments of k have places of their own.
static sums sums_of(const call *g, int64_t batch, int64_t split) {
    const int64_t m = g->size[M], n = g->size[N];
    if (g->size[SPLITS] > 1)
        return (sums){(TB_T *)(g->scratch + g->size[PLACE_T]) + split * m * n, n, 1};
    const int64_t *const step = pair_of(g, 2);
    TB_T *const base = (TB_T *)((char *)g->ptr[g->size[SUMS]] + g->size[PLACE_T]);
    return (sums){base + batch_offset(g, 2, batch), step[0], step[1]};
}

// The sums of a task that has a place for them: element (i, j) of the product lies where the block's would.
static sums sums_apart(const call *g, TB_T *at, int64_t i, int64_t j) {
    const int64_t row = g->size[TASK_COLUMNS];
    return (sums){(TB_T *)((uintptr_t)at - (uintptr_t)(i * row + j) * sizeof(TB_T)), row, 1};
}

// Runs the tail on a block whose sums are complete.
static void finish(const call *g, int64_t batch, int64_t i, int64_t j, int64_t rows, int64_t columns, const sums *product) {
    if (!g->size[TAIL])
        return;
    const int count = (int)g->size[COUNT];
    const int64_t *const item = g->size + FIRST + g->size[BATCH_RANK];
    void *ptr[OPERANDS];
    int64_t stride[2 * OPERANDS];
    for (int slot = 0, other = 0; slot < count; ++slot) {
        if (slot == g->size[PRODUCT]) {
            ptr[slot] = product->at + i * product->row + j * product->column;
            stride[2 * slot] = product->row, stride[2 * slot + 1] = product->column;
            continue;
        }
        const int64_t *const step = pair_of(g, 3 + other);
        const int64_t at = batch_offset(g, 3 + other, batch) + i * step[0] + j * step[1];
        ptr[slot] = (char *)g->ptr[2 + other] + at * item[other];
        stride[2 * slot] = step[0], stride[2 * slot + 1] = step[1];
        ++other;
    }
    const int64_t inner = g->size[INNER] ? columns : rows, outer = g->size[INNER] ? rows : columns;
    const int64_t turned = g->size[TURNED], chunk = turned ? turned : inner, pieces = ceiling(inner, chunk);
    const int64_t size[] = {rows, columns, chunk, pieces, outer, g->size[STREAMS], 1, 0};
    const int64_t tasks = turned ? ceiling(outer, turned) * pieces : 1;
    ((tb_kernel)g->size[TAIL])(ptr, size, stride, g->scalar, 0, tasks);
}

// Whether tasks copy their rows of a, and share the copy of b.
static inline int own_rows(const call *g) { return g->size[OWN_A] && !g->size[OWN]; }

// The place of a task: which batch and segment, and its rows and columns.
typedef struct block {
    int64_t batch, split, i, j, rows, columns;
} block;

static block block_of(const call *g, int64_t task) {
    block at;
    // Neighbours share what a task copies itself: rows, if it copies these alone.
    const int rows_last = own_rows(g);
    const int64_t first = remainder_of(&task, rows_last ? g->column_tasks : g->row_tasks);
    const int64_t second = remainder_of(&task, rows_last ? g->row_tasks : g->column_tasks);
    at.i = (rows_last ? second : first) * g->size[TASK_ROWS];
    at.rows = least(g->size[TASK_ROWS], g->rows - at.i);
    at.j = (rows_last ? first : second) * g->size[TASK_COLUMNS];
    at.columns = least(g->size[TASK_COLUMNS], g->columns - at.j);
    at.split = remainder_of(&task, g->size[SPLITS]);
    at.batch = task;
    return at;
}

#if defined(TB_FEW)
#include "gemm_few.h"
#else
// A copy that a task has of its own, or none: from step `k0` of the phase and row or column `first` of the round on, its
// panels or tiles `apart` elements from one another. If `kept`, it has all steps, and stays in the slot for the next task.
typedef struct copy {
    TB_T *at;
    int64_t k0, first, apart;
    int kept;
} copy;

typedef struct copies {
    copy a, b;
    int64_t *kept;
} copies;

// What a task copies next: lines of b, in `runs` that begin `apart` bytes from one another. Of the first run, whose `length` is
// counted in steps of `step` bytes with as many lines as a tile has rows, `row` bytes apart, `done` are fetched; a tile fetches
// `part`.
typedef struct coming {
    const char *run;
    int64_t runs, apart, length, step, row, part, done;
} coming;

static void fetch_later(work *w, coming *next) {
    w->times = 0;
    if (!next->runs)
        return;
    w->later = next->run + next->done * next->step;
    w->later_step = next->step, w->later_row = next->row;
    w->times = least(next->part, next->length - next->done);
    next->done += next->part;
    if (next->done >= next->length)
        next->run += next->apart, next->runs -= 1, next->done = 0;
}

// Where the panel of the shared copy begins that comes after this one of a block: there is none (0), or it is where the next
// block begins.
static const char *panel_after(const call *g, const block *at, int64_t panel, int64_t k0) {
    const int64_t part = at->batch * g->size[SPLITS] + at->split, width = g->size[PANEL];
    const int64_t next = (panel + 1) * width < at->j + at->columns ? panel + 1 : at->j / width;
    return next == panel || next < first_panel(g) ? 0 : (const char *)(place_of_b(g, part, next) + packed(k0 * width));
}

// One panel of columns times all rows of a block, for `k` steps from `k0` of the phase.
static void panel_by_rows(const call *g, const block *at, int64_t panel, int64_t k0, int64_t k, sums to, int add,
                          const copies *own, coming *next) {
    const int64_t part = at->batch * g->size[SPLITS] + at->split, j = panel * g->size[PANEL], step = g->size[TILE_ROWS];
    const int columns = (int)least(g->size[PANEL], g->columns - j), vectors = vectors_of(columns);
    const int64_t from = k_begin(g, at->split) + k0, batch = g->batch + at->batch;
    const int64_t *const a_step = pair_of(g, 0), *const b_step = pair_of(g, 1);
    const TB_A *const a = (const TB_A *)g->ptr[g->size[SWAP]] + batch_offset(g, 0, batch) + (g->row + at->i) * a_step[0] + from * a_step[1];
    TB_T *const t = to.at + (g->row + at->i) * to.row + (g->column + j) * to.column;
    work w = {.k = k, .t = t, .a_row = a_step[0], .a_k = a_step[1], .b_k = width_of(g, columns), .t_row = to.row,
              .t_column = to.column, .columns = columns, .add = add};
    w.past = g->size[PAST] && ((uintptr_t)t | (uintptr_t)(to.row * (int64_t)sizeof(TB_T))) % 64 == 0;
    w.far = !w.past && to.column == 1 && g->size[M] * g->size[N] > NEAR;
    if (own->b.at) {
        w.b = own->b.at + (j - own->b.first) / g->size[PANEL] * own->b.apart + packed((k0 - own->b.k0) * w.b_k);
    } else if (panel >= first_panel(g)) {
        w.b = place_of_b(g, part, panel) + packed(k0 * w.b_k);
    } else {
        w.b_k = b_step[0];
        w.b = (const TB_T *)g->ptr[!g->size[SWAP]] + batch_offset(g, 1, batch) + from * w.b_k + (g->column + j);
        w.ahead = w.b_k != columns && (g->size[N] * g->size[K] > NEAR || w.b_k % LANES) ? AHEAD * w.b_k : 0;
    }
    // Tiles fetch the panel that comes next, a line at a time: all of it, or where there are few its first lines.
    const int64_t tiles = ceiling(at->rows, step), of_tile = k / 2;
    const char *const after = own->b.at || panel < first_panel(g) ? 0 : panel_after(g, at, panel, k0);
    w.soon = after ? after : (const char *)w.b;
    w.soon_step = after && of_tile ? least(ceiling(packed(k * w.b_k) * (int64_t)sizeof(TB_T), tiles * of_tile), 64) : 0;
    // Rows of a segment are read once, in runs that are too short for the processor to guess the next.
    const int far = own->b.at && g->size[SPLITS] > 1 && w.a_k == 1 && j == at->j;
    // Tiles of one vector use their rows faster than the processor fetches them by itself.
    const int away = !g->size[PACK_A] && w.a_k == 1 && g->columns <= LANES && g->size[M] * g->size[K] > FAR;
    for (int64_t i = 0; i < at->rows; i += step) {
        const int rows = (int)least(step, at->rows - i);
        w.a = (const TB_T *)(a + i * a_step[0]);
        if (g->size[PACK_A]) {
            w.a_row = 1, w.a_k = step;
            const int64_t tile = (at->i + i - own->a.first) / step;
            w.a = own->a.at ? own->a.at + tile * own->a.apart : place_of_a(g, part, tile);
            w.a += packed((k0 - own->a.k0) * step);
        } else if (far) {  // what comes from memory: the next tile's rows or the first one's next steps
            w.next = i + step < at->rows ? step * w.a_row : k - i * w.a_row;
        } else if (away) {
            w.next = AWAY;
        }
        w.t = t + i * to.row;
        fetch_later(&w, next);
        run_tile(g, vectors, rows, &w);
        w.soon += w.soon_step * of_tile;
    }
}

#if defined(TB_PLANES)
// Makes the sums of a block that are not finite anew, by multiply-adds.
static void mend(const call *g, const block *at, int64_t batch, const sums *to) {
    const int64_t *const a_step = pair_of(g, 0), *const b_step = pair_of(g, 1);
    const TB_A *const a = (const TB_A *)g->ptr[g->size[SWAP]] + batch_offset(g, 0, batch);
    const TB_B *const b = (const TB_B *)g->ptr[!g->size[SWAP]] + batch_offset(g, 1, batch);
    TB_T *t = to->at + (g->row + at->i) * to->row + (g->column + at->j) * to->column;
    if (to->column == 1 && all_finite(t, at->rows, to->row, at->columns))
        return;
    for (int64_t i = g->row + at->i; i < g->row + at->i + at->rows; ++i, t += to->row)
        for (int64_t j = 0; j < at->columns; ++j) {
            if (t[j * to->column] * 0 == 0)
                continue;
            TB_T sum = 0;
            for (int64_t p = 0; p < g->size[K]; ++p)
                sum += TB_WIDE_A(a[i * a_step[0] + p * a_step[1]]) * TB_WIDE_B(b[p * b_step[0] + (g->column + at->j + j) * b_step[1]]);
            t[j * to->column] = sum;
        }
}
#endif

// What follows the word of a slot, if it keeps copies: of which batch (0: of none), which block of columns of b (0: none),
// and which blocks of rows of a, a bit each; or where the only block of rows begins, after those of earlier phases.
enum { KEPT_BATCH = 1, KEPT_COLUMNS, KEPT_ROWS };

// Copies `k` steps from `k0` of the phase of a block's rows, its columns.
static void copy_rows(const call *g, const block *at, int64_t part, int64_t k0, int64_t k, copy *own) {
    const int64_t height = g->size[TILE_ROWS], tile = at->i / height;
    own->first = own->kept && !own_rows(g) ? 0 : at->i;
    own->k0 = k0;
    copy_tiles(g, part, k0, k, tile, ceiling(at->i + at->rows, height), own->at + (at->i - own->first) / height * own->apart,
               own->apart, 0);
}

static void copy_columns(const call *g, int64_t part, int64_t k0, int64_t k, int64_t first, int64_t last, copy *own) {
    own->first = first * g->size[PANEL];
    own->k0 = k0;
    copy_panels(g, part, k0, k, first, last, own->at, own->apart, 0);
}

// Makes what a block needs of the copies that stay, and is not there yet.
static void keep_copies(const call *g, const block *at, int64_t k, copies *own) {
    int64_t *const kept = own->kept, batch = g->batch + at->batch + 1;
    const int64_t place = at->i / g->size[TASK_ROWS], columns = g->column + at->j + 1;
    const int64_t rows = own_rows(g) ? g->phase * g->row_tasks + place + 1 : own->a.kept ? (int64_t)1 << place : 0;
    if (kept[KEPT_BATCH] != batch || (own_rows(g) && kept[KEPT_ROWS] != rows))
        kept[KEPT_COLUMNS] = kept[KEPT_ROWS] = 0;
    if (own->a.kept && !(kept[KEPT_ROWS] & rows))
        copy_rows(g, at, at->batch, 0, k, &own->a);
    if (own->b.kept && kept[KEPT_COLUMNS] != columns)
        copy_columns(g, at->batch, 0, k, at->j / g->size[PANEL], ceiling(at->j + at->columns, g->size[PANEL]), &own->b);
    own->a.first = own_rows(g) ? at->i : 0;
    own->b.first = at->j;
    kept[KEPT_BATCH] = batch, kept[KEPT_COLUMNS] = columns, kept[KEPT_ROWS] |= rows;
}

// What a block copies after the panels before `end`, `here` steps from k0 of k: the next panels, or the first ones' next steps,
// or what the next block will. `tiles` are computed until then.
static coming coming_after(const call *g, const block *at, int64_t end, int64_t last, int64_t k0, int64_t here, int64_t k,
                           int64_t tiles) {
    const int again = end == last && (k0 + here < k || g->size[SPLITS] > 1);
    const int64_t j = again ? at->j : end * g->size[PANEL], from = again ? k0 + here : end < last ? k0 : 0;
    const int64_t p = k_begin(g, at->split) + from;
    if (j >= g->columns || p >= g->size[K])
        return (coming){0};
    const int64_t *const step = pair_of(g, 1), item = sizeof(TB_B), rows = g->size[TILE_ROWS];
    const TB_B *const b = (const TB_B *)g->ptr[!g->size[SWAP]] + batch_offset(g, 1, g->batch + at->batch);
    const int64_t columns = least(end < last ? last * g->size[PANEL] : g->columns, j + g->size[TOGETHER]) - j;
    coming next = {.run = (const char *)(b + p * step[0] + (g->column + j) * step[1])};
    if (step[0] == 1) {  // runs along k, of as many columns as a tile has rows
        next.row = step[1] * item, next.step = 64, next.apart = rows * next.row;
        next.length = ceiling(here * item, 64), next.runs = ceiling(columns, rows);
    } else {  // runs across k, a line wide
        next.row = step[0] * item, next.step = rows * next.row, next.apart = 64;
        next.length = ceiling(here, rows), next.runs = ceiling(columns * item, 64);
    }
    next.part = tiles > next.runs ? ceiling(next.length, tiles / next.runs) : next.length;
    return next;
}

// All panels of a block, for `k` steps of the phase.
static void sums_of_block(const call *g, const block *at, int64_t k, sums to, copies *own) {
    const int64_t part = at->batch * g->size[SPLITS] + at->split;
    const int64_t first = at->j / g->size[PANEL], last = ceiling(at->j + at->columns, g->size[PANEL]);
    const int copies_b = own->b.at && !own->b.kept;
    int64_t k0 = 0;
    if (own->a.kept || own->b.kept)
        keep_copies(g, at, k, own);
    do {
        const int64_t here = least(g->size[BLOCK_K], k - k0);
        if (own->a.at && !own->a.kept && here > 0)
            copy_rows(g, at, part, k0, here, &own->a);
        for (int64_t from = first, end; from < last; from = end) {
            end = copies_b ? least(from + g->size[TOGETHER] / g->size[PANEL], last) : last;
            coming next = {0};
            if (copies_b && here > 0) {
                copy_columns(g, part, k0, here, from, end, &own->b);
                next = coming_after(g, at, end, last, k0, here, k, (end - from) * ceiling(at->rows, g->size[TILE_ROWS]));
            }
            for (int64_t panel = from; panel < end; ++panel)
                panel_by_rows(g, at, panel, k0, here, to, k0 > 0 || g->phase > 0, own, &next);
        }
        k0 += here;
    } while (k0 < k);
}

// The copies in a slot's memory, if tasks have their own. What several tasks need stays there: `kept` says what it is.
static copies own_copies(const call *g, char *memory, int64_t *kept) {
    const int64_t of_b = g->size[OWN], part_k = g->size[BLOCK_K], all_k = g->size[PHASE_K];
    copies own = {.kept = kept};
    if (of_b) {
        own.b.at = (TB_T *)memory;
        own.b.kept = g->row_tasks > 1;
        own.b.apart = packed(width_of(g, g->size[PANEL]) * (own.b.kept ? all_k : part_k));
    }
    if (g->size[OWN_A]) {
        own.a.at = (TB_T *)(memory + of_b);
        own.a.kept = g->column_tasks > 1 || !of_b;
        own.a.apart = packed(g->size[TILE_ROWS] * (own.a.kept ? all_k : part_k));
    }
    return own;
}

// Tasks: blocks of rows by blocks of columns by segments of k by batches.
static void multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                     int64_t end) {
    const call *const g = ptr[0];
    (void)size, (void)stride, (void)scalar;
    void *const slots = g->scratch + g->size[PLACE_OWN];
    const int64_t copied = g->size[OWN] + g->size[OWN_A], bytes = copied + g->size[APART];
    const int64_t slot = bytes ? take_slot(slots, g->size[SLOTS]) : 0;
    char *const memory = bytes ? slot_memory(slots, g->size[SLOTS], slot, bytes) : 0;
    TB_T *const apart = g->size[APART] ? (TB_T *)(memory + copied) : 0;
    copies own = own_copies(g, memory, slot_word(slots, slot));
    begin_tiles();
    for (int64_t task = begin; task < end; ++task) {
        const block at = block_of(g, task);
        const int64_t batch = g->batch + at.batch, k = k_end(g, at.split) - k_begin(g, at.split);
        if (k <= 0 && g->phase)  // the last segment is shorter: it ended in an earlier phase
            continue;
        const sums to = apart ? sums_apart(g, apart, g->row + at.i, g->column + at.j) : sums_of(g, batch, at.split);
        sums_of_block(g, &at, k, to, &own);
        if (g->phase == g->phases - 1 && g->size[SPLITS] == 1) {
#if defined(TB_PLANES)
            mend(g, &at, batch, &to);
#endif
            finish(g, batch, g->row + at.i, g->column + at.j, at.rows, at.columns, &to);
        }
    }
    end_tiles();
    if (g->size[PAST])
        finish_stores();
    if (memory)
        give_slot(slots, slot);
}
#endif

// What a task takes whose segments are added up: sums that stay in the first-level cache meanwhile, whole rows, or if rows and
// columns have changed places, whole lines of the columns that the result has.
typedef struct part_of_sums {
    int64_t rows, columns;
} part_of_sums;

static part_of_sums joined_part(const call *g) {
    const int64_t m = g->size[M], n = g->size[N];
    const int64_t columns = g->size[SWAP] ? least(n, ceiling(JOINED, least(m, JOINED_ROWS))) : n;
    return (part_of_sums){least(m, ceiling(JOINED, columns)), columns};
}

// Tasks: blocks of columns by blocks of rows, whose segments are added up in order.
static void join(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                 int64_t end) {
    const call *const g = ptr[0];
    const int64_t m = g->size[M], n = g->size[N];
    const int64_t *const step = pair_of(g, 2);
    const part_of_sums each = joined_part(g);
    TB_T *const parts = (TB_T *)(g->scratch + g->size[PLACE_T]), *const out = g->ptr[g->size[SUMS]];
    const sums to = {parts, n, 1};
    (void)size, (void)stride, (void)scalar;
    for (int64_t task = begin; task < end; ++task) {
        int64_t column_task = task;
        const int64_t i0 = remainder_of(&column_task, ceiling(m, each.rows)) * each.rows, j0 = column_task * each.columns;
        const int64_t rows = least(each.rows, m - i0), columns = least(each.columns, n - j0);
        for (int64_t split = 1; split < g->size[SPLITS]; ++split)
            for (int64_t i = i0; i < i0 + rows; ++i) {
                TB_T *const row = parts + i * n;
                const TB_T *const part = row + split * m * n;
                for (int64_t j = j0; j < j0 + columns; ++j) row[j] += part[j];
            }
        for (int64_t i = i0; i < i0 + rows && !g->size[TAIL]; ++i)
            for (int64_t j = j0; j < j0 + columns; ++j) out[i * step[0] + j * step[1]] = parts[i * n + j];
        finish(g, 0, i0, j0, rows, columns, &to);
    }
}

// Rounds --------------------------------------------------------------------------------------------------------------

static void launch(call *g, tb_kernel fn, int64_t tasks, int64_t cost, const int64_t *size) {
    void *self[1] = {g};
    const int64_t none = 0;
    const tb_launch l = {fn, tasks, cost, self, size ? size : &none, &none, &none};
    ((void (*)(const tb_launch *))g->size[RUN])(&l);
}

// Copies what this round needs: the panels of b with its first rows, the tiles of a.
static void launch_copies(call *g) {
    const int64_t parts = g->batches * g->size[SPLITS], panels = g->row || g->size[OWN] ? 0 : g->panels - first_panel(g);
    const int64_t tiles = g->size[PACK_A] && !g->size[OWN_A] ? g->tiles : 0, height = g->size[TILE_ROWS], width = width_of(g, g->size[PANEL]);
    const int64_t of_b = parts * groups_of(panels, width) * g->chunks, of_a = parts * groups_of(tiles, height) * g->chunks;
    const int64_t elements = parts * (panels * width + tiles * height) * g->size[PHASE_K];
    if (of_a + of_b)
        launch(g, pack, of_a + of_b, elements / 3, &of_b);
}

static void one_round(call *g) {
    const int64_t *const size = g->size;
    g->row_tasks = ceiling(g->rows, size[TASK_ROWS]);
    g->column_tasks = ceiling(g->columns, size[TASK_COLUMNS]);
    g->panels = ceiling(g->columns, size[PANEL]);
    g->tiles = ceiling(g->rows, size[TILE_ROWS]);
    launch_copies(g);
    const int64_t tasks = g->row_tasks * g->column_tasks * g->batches * size[SPLITS];
    const double steps = (double)least(size[PHASE_K], size[SPLIT_K]) * (double)size[SPLITS];
    const double flops = 2.0 * (double)g->rows * (double)ceiling(g->columns, LANES) * LANES * steps * (double)g->batches;
    launch(g, multiply, tasks, (int64_t)(flops / 100), 0);
}

// One task: the whole product. ptr {a, b, the tail's operands but the product, or the target; scratch}; size as above;
// stride those of a, b, the sums and these operands, each with the batch axes first; scalar the tail's.
void tb_gemm(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
             int64_t end) {
    call whole = {ptr, size, stride, scalar}, *const g = &whole;
    (void)begin, (void)end;
    g->scratch = size[SCRATCH] ? ptr[2 + (size[TAIL] ? size[COUNT] - 1 : 1)] : 0;
    if (size[OWN] + size[OWN_A] + size[APART])
        free_slots(g->scratch + size[PLACE_OWN], size[SLOTS]);
    g->phases = size[SPLIT_K] > size[PHASE_K] ? ceiling(size[SPLIT_K], size[PHASE_K]) : 1;
    g->chunks = ceiling(size[PHASE_K], PACK_K);
    for (g->batch = 0; g->batch < size[BATCHES]; g->batch += size[ROUND]) {
        g->batches = least(size[ROUND], size[BATCHES] - g->batch);
        for (g->column = 0; g->column < size[N]; g->column += size[PHASE_COLUMNS]) {
            g->columns = least(size[PHASE_COLUMNS], size[N] - g->column);
            for (g->phase = 0; g->phase < g->phases; ++g->phase)
                for (g->row = 0; g->row < size[M]; g->row += size[PHASE_ROWS]) {
                    g->rows = least(size[PHASE_ROWS], size[M] - g->row);
                    one_round(g);
                }
        }
    }
    if (size[SPLITS] > 1 && size[M] && size[N]) {
        const part_of_sums each = joined_part(g);
        const int64_t tasks = ceiling(size[M], each.rows) * ceiling(size[N], each.columns);
        launch(g, join, tasks, size[M] * size[N] * size[SPLITS] / 4, 0);
    }
}

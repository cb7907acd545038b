// SPDX-License-Identifier: Apache-2.0
// conv_winograd_few.h — tiles of conv_winograd.c of fewer images than a vector has lanes
//
// Copy      The tiles of a panel that are neighbours in a row of tiles are a line. Of a channel, the rows of each line are
//           copied with zeros around them, image by image: [line][row][image][column]. So every tile is whole.
// Squares   The rows of LANES tiles, as many as a vector has room for side by side, are transposed to vectors of lanes.
// Pays      since to put a vector together number by number takes several times as long

enum {
    MOST_LINES = WIDTH + 2,
    // A panel's tiles, the first and the last with all their images, are so many at most; and lines have gaps, since they
    // are as long as the longest.
    COPIED = 4 * (WIDTH + 2 * LANES) * SQUARE,
};

// A line of tiles: where its first place is in a map, and which of its rows and columns exist.
typedef struct line {
    int64_t in;
    int rows0, rows1, columns0, columns1;
} line;

// The lines of a panel; in the copy, elements from an image's row to the next and from a row of all images to the next.
typedef struct lines {
    int64_t count, side, wide, pitch, row;
    line lines[MOST_LINES];
    int32_t at[WIDTH];  // where the tile of each lane begins
} lines;

// Whether tiles of `side` x `side` errors go through the copy: four images of one tile are put together as fast.
INLINE int few_images(const shape *s, int side) {
    return 4 * LENGTH < LANES && s->images < LANES && (side > 4 ? 8 : 4) <= LANES;
}

// The same of data.
INLINE int are_few(const shape *s, int side) { return few_images(s, side) && s->high.stride * s->wide.stride == 1; }

// The lines of `lanes` lanes from `lane` on: tiles of `side` x `side` places of maps of `high` x `wide` places.
static void find_lines(const shape *s, int64_t lane, int lanes, int side, int64_t high, int64_t wide, int64_t pad_high,
                       int64_t pad_wide, lines *x) {
    const int64_t n = s->images, have = s->lanes > lane ? least(s->lanes - lane, lanes) : 0;
    const int64_t begin = lane / n, end = have ? ceil_div(lane + have, n) : begin;
    x->count = 0, x->side = side, x->wide = wide;
    x->pitch = least(s->columns, end - begin) * STEP + side - STEP;
    x->row = n * x->pitch;
    for (int64_t tile = begin, count; tile < end; tile += count, ++x->count) {
        const int64_t row = tile / s->columns, column = tile % s->columns;
        const int64_t h = row % s->rows * STEP - pad_high, w = column * STEP - pad_wide;
        count = least(s->columns - column, end - tile);
        const int length = (int)(count * STEP + side - STEP);
        x->lines[x->count] = (line){
            ((row / s->rows * high + h) * wide + w) * n,
            limit(-h, side), limit(high - h, side), limit(-w, length), limit(wide - w, length),
        };
        int32_t at = (int32_t)(x->count * side * x->row);
        for (int64_t l = tile * n - lane; l < (tile + count) * n - lane; at += STEP)
            for (int64_t image = 0; image < n; ++image, ++l)
                if (l >= 0 && l < have) x->at[l] = at + (int32_t)(image * x->pitch);
    }
    for (int64_t l = have; l < lanes; ++l) x->at[l] = (int32_t)(x->count * side * x->row);
}

// Zeros, for what does not exist: around the lines, and behind them for lanes without a tile.
static void clear_lines(const lines *x, TB_T *copy) {
    const int64_t rows = (x->count + 1) * x->side + LANES / 4;
    __builtin_memset(copy, 0, sizeof(TB_T) * (unsigned long)(rows * x->row + LANES));
}

// Places of an image's row, `step` apart, side by side; vectors may overlap.
INLINE void copy_places(const TB_S *from, int64_t step, int64_t count, TB_T *to) {
    if (step > 1 || count < LANES)
        for (int64_t i = 0; i < count; ++i) to[i] = TB_WIDE(from[i * step]);
    else
        for (int64_t i = 0; i < count; i = i + LANES < count ? least(i + LANES, count - LANES) : count)
            *(vec *)(to + i) = load(from + i);
}

// What exists of the lines of a map.
static void copy_lines(const shape *s, const lines *x, const TB_S *map, TB_T *copy) {
    const int64_t n = s->images;
    for (int64_t l = 0; l < x->count; ++l, copy += x->side * x->row) {
        const line *const of = x->lines + l;
        const int64_t count = of->columns1 - of->columns0;
        for (int64_t r = of->rows0; r < of->rows1; ++r) {
            const TB_S *const from = map + of->in + (r * x->wide + of->columns0) * n;
            TB_T *const to = copy + r * x->row + of->columns0;
            for (int64_t image = 0; image < n; ++image)
                if (n == 1) copy_places(from, 1, count, to);
                else if (n == LENGTH) copy_places(from + image, LENGTH, count, to + image * x->pitch);
                else copy_places(from + image, n, count, to + image * x->pitch);
        }
    }
}

// The squares of `side` x `side` places of LANES tiles, as vectors of lanes.
INLINE void turn_squares(const lines *x, const int32_t *at, const TB_T *copy, int side, vec *d) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    enum { MOST = LANES / 4 > 0 ? LANES / 4 : 1 };
    const int room = side > 4 ? 8 : 4, together = LANES / room;  // columns of a row, and rows of a vector
    mask lane;
    UNROLL for (int l = 0; l < LANES; ++l) lane[l] = l;
    for (int i = 0; i < side; i += together) {
        vec turned[LANES];
        UNROLL for (int l = 0; l < LANES; ++l) {
            vec rows[MOST];
            UNROLL for (int n = 0; n < together; ++n) rows[n] = *(const vec *)(copy + at[l] + (i + n) * x->row);
            UNROLL for (int n = together, held = room; n > 1; n /= 2, held *= 2) {
                const mask both = lane + ((mask)(lane >= held) & (LANES - held));
                UNROLL for (int k = 0; k < n / 2; ++k) rows[k] = TB_CHOSEN(rows[2 * k], rows[2 * k + 1], both);
            }
            turned[l] = rows[0];
        }
        transpose(turned);
        UNROLL for (int n = 0; n < together; ++n)
            UNROLL for (int k = 0; k < side && i + n < side; ++k) d[(i + n) * side + k] = turned[n * room + k];
    }
}

// The places of LANES tiles of a single image to memory, row by row.
INLINE void put_squares(const shape *s, const piece *p, const vec *o, TB_R *image) {
    enum { VECTORS = (OUT * OUT + LANES - 1) / LANES };
    vec squares[LANES][VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) {
        vec turned[LANES];
        UNROLL for (int i = 0; i < LANES; ++i) turned[i] = v * LANES + i < OUT * OUT ? o[v * LANES + i] : (vec){0};
        transpose(turned);
        UNROLL for (int l = 0; l < LANES; ++l) squares[l][v] = turned[l];
    }
    for (int l = 0; l < LANES; ++l, ++p) {
        const TB_T *from = (const TB_T *)squares[l];
        TB_R *to = image + p->out;
        for (int i = 0; i < p->high; ++i, from += OUT, to += s->out_wide)
            if (p->wide == OUT) UNROLL for (int j = 0; j < OUT; ++j) to[j] = TB_NARROW(from[j]);
            else
                for (int j = 0; j < p->wide; ++j) to[j] = TB_NARROW(from[j]);
    }
}

// SPDX-License-Identifier: Apache-2.0
// space_to_batch.c — images whose places modulo a step are images of their own, and back
//
// Computes  place i of an axis is place (i + front) / step of part (i + front) % step; parts are images, those of width
//           next to each other, then of height, then of depth, each with all N:
//
//               a row of a map, step 2, front 1:   0 1 2 3 4 5 6
//               parts:                             . 1 3 5    0 2 4 6
//
//           What a part has beyond the image is zero, and so is what an image has beyond all parts.
// Copies    chunks: the places of a row, of all parts of width, that have one place of them
// Bound by  memory
// Checked   tests/primitives/test_conv_rearranged.py
#include "conv.h"

// What the host passes after the places. Lengths of images, and of their parts, and the rest for depth, height, width.
enum {
    COUNT = SIZES,  // images
    WHOLE,
    PART = WHOLE + 3,
    STEP = PART + 3,
    FRONT = STEP + 3,
    JOINED = FRONT + 3,  // rows of a task that puts images together
};

typedef struct parts {
    const int64_t *whole, *part, *step, *front;
    int64_t item, chunk, pitch;  // bytes: of a place of all images, of one of all parts of width, of one of all parts
} parts;

static parts read_parts(const int64_t *size, int64_t bytes) {
    parts p = {size + WHOLE, size + PART, size + STEP, size + FRONT, size[COUNT] * bytes, 0, 0};
    p.chunk = p.step[2] * p.item;
    p.pitch = p.step[0] * p.step[1] * p.chunk;
    return p;
}

#define COPY_OF(BYTES) \
    if (bytes == (BYTES)) { \
        for (int64_t i = 0; i < count; ++i) __builtin_memcpy(to + i * to_step, from + i * from_step, BYTES); \
        return; \
    }

// `count` chunks of so many bytes.
static void copy_chunks(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t bytes, int64_t count) {
    COPY_OF(4)
    COPY_OF(8)
    COPY_OF(16)
    COPY_OF(32)
    COPY_OF(64)
    for (int64_t i = 0; i < count; ++i) __builtin_memcpy(to + i * to_step, from + i * from_step, (unsigned long)bytes);
}

static void clear_chunks(char *to, int64_t step, int64_t bytes, int64_t count) {
    for (int64_t i = 0; i < count; ++i) __builtin_memset(to + i * step, 0, (unsigned long)bytes);
}

// Where the chunks of a row begin, of places at depth z and height y of an image with `front` before it.
static int64_t start_of(const parts *p, int64_t map, int64_t z, int64_t y) {
    const int64_t row = (map * p->part[0] + z / p->step[0]) * p->part[1] + y / p->step[1];
    return row * p->part[2] * p->pitch + (z % p->step[0] * p->step[1] + y % p->step[1]) * p->chunk;
}

// A row of an image, as bytes of all chunks in a row: those before it and behind it are no part of it.
typedef struct row {
    int64_t before, bytes;
    int64_t first, last;  // whole chunks
} row;

static row row_of(const parts *p) {
    const int64_t before = p->front[2] * p->item, whole = p->whole[2] * p->item, all = p->part[2] * p->chunk;
    const int64_t bytes = least(whole, all - before);
    row r = {before, bytes, ceil_div(before, p->chunk), (before + bytes) / p->chunk};
    if (r.last < r.first) r.last = r.first;
    return r;
}

// The next chunk from this one on that is not whole.
static int64_t cut(const row *r, int64_t chunk) { return chunk >= r->first && chunk < r->last ? r->last : chunk; }

// The part of a chunk that a row has: bytes [*from, *to) of it.
static void met(const parts *p, const row *r, int64_t chunk, int64_t *from, int64_t *to) {
    const int64_t start = r->before - chunk * p->chunk, end = start + r->bytes;
    *from = start < 0 ? 0 : least(start, p->chunk);
    *to = end < *from ? *from : least(end, p->chunk);
}

// From images IN to their parts, RESULT. A task: the places of all parts of width at one place of the other axes.
void tb_space_to_batch(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                       int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const parts p = read_parts(size, sizeof(TB_S));
    const row r = row_of(&p);
    const int64_t deep = p.part[0] * p.step[0], high = p.part[1] * p.step[1];
    for (int64_t task = begin; task < end; ++task) {
        const int64_t y = task % high, z = task / high % deep, map = task / high / deep;
        char *const to = (char *)TB_PLACE(RESULT) + start_of(&p, map, z, y);
        const int64_t down = y - p.front[1], in = z - p.front[0];
        if (down < 0 || down >= p.whole[1] || in < 0 || in >= p.whole[0]) {
            clear_chunks(to, p.pitch, p.chunk, p.part[2]);
            continue;
        }
        const char *const line = (char *)TB_PLACE(IN) + ((map * p.whole[0] + in) * p.whole[1] + down) * p.whole[2] * p.item;
        const char *const from = line - r.before;
        copy_chunks(to + r.first * p.pitch, p.pitch, from + r.first * p.chunk, p.chunk, p.chunk, r.last - r.first);
        for (int64_t c = cut(&r, 0); c < p.part[2]; c = cut(&r, c + 1)) {
            int64_t a, b;
            met(&p, &r, c, &a, &b);
            __builtin_memset(to + c * p.pitch, 0, (unsigned long)p.chunk);
            if (b > a) __builtin_memcpy(to + c * p.pitch + a, from + c * p.chunk + a, (unsigned long)(b - a));
        }
    }
}

// From parts IN to the images, RESULT, and what follows them. A task: some rows of a map.
void tb_batch_to_space(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                       int64_t begin, int64_t end) {
    const parts p = read_parts(size, sizeof(TB_R));
    const row r = row_of(&p);
    const int64_t joined = size[JOINED], pieces = ceil_div(p.whole[1], joined), line = p.whole[2] * p.item;
    const int64_t places = p.whole[0] * p.whole[1] * p.whole[2] * size[COUNT], wide = p.whole[2] * size[COUNT];
    for (int64_t task = begin; task < end; ++task) {
        const int64_t in = task / pieces % p.whole[0], map = task / pieces / p.whole[0];
        const int64_t y0 = task % pieces * joined, y1 = least(y0 + joined, p.whole[1]);
        const int64_t start = in * p.whole[1] + y0;
        char *to = (char *)TB_PLACE(RESULT) + (map * p.whole[0] * p.whole[1] + start) * line;
        for (int64_t down = y0; down < y1; ++down, to += line) {
            const int64_t z = in + p.front[0], y = down + p.front[1];
            if (z >= p.part[0] * p.step[0] || y >= p.part[1] * p.step[1]) {
                __builtin_memset(to, 0, (unsigned long)line);
                continue;
            }
            const char *const from = (char *)TB_PLACE(IN) + start_of(&p, map, z, y);
            char *const back = to - r.before;
            copy_chunks(back + r.first * p.chunk, p.chunk, from + r.first * p.pitch, p.pitch, p.chunk, r.last - r.first);
            for (int64_t c = cut(&r, 0); c < p.part[2]; c = cut(&r, c + 1)) {
                int64_t a, b;
                met(&p, &r, c, &a, &b);
                if (b > a) __builtin_memcpy(back + c * p.chunk + a, from + c * p.pitch + a, (unsigned long)(b - a));
            }
            if (r.bytes < line) __builtin_memset(to + r.bytes, 0, (unsigned long)(line - r.bytes));
        }
        TB_FINISH(places, map, 1, start * wide, (y1 - y0) * wide);
    }
}

// SPDX-License-Identifier: Apache-2.0
// conv_strided.h — operands of a convolution that lie otherwise than its kernels want them, copied
//
// Copies    of up to five axes, neighbours joined where both sides allow. Mostly the batch is the first axis in the source
//           and the last in the target: then two axes are left, `along` which the source's neighbours lie side by side
//           (C D H W; of filters C T R S), and `across`, which is the target's (N; K).
// Forms     squares of vectors, transposed; few lines, less than a vector of them, dealt out like cards, where they are
//           all that there is; runs that lie side by side in both; else one number after the other.
// Bound by  memory
// Checked   tests/primitives/test_conv_kernels.py
#ifndef TB_CONV_STRIDED_H
#define TB_CONV_STRIDED_H

enum { COPY_LENGTH = 256 };  // of a task's part of the axes along and across

// What the host passes after the places: lengths of the axes, the last two along and across, and strides of both sides.
typedef struct sheet {
    const int64_t *n, *x, *y;
} sheet;

// The numbers of two vectors by turns.
INLINE void deal(vec *a, vec *b) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    mask low;
    UNROLL for (int l = 0; l < LANES; ++l) low[l] = l / 2 + l % 2 * LANES;
    const vec first = TB_CHOSEN(*a, *b, low);
    *b = TB_CHOSEN(*a, *b, low + LANES / 2);
    *a = first;
}

#ifdef TB_PLAIN
// `lines` vectors, a power of 2, by turns: of lines k and k + half of them, then of what these are, and so on.
INLINE void deal_lines(vec *v, int lines) {
    UNROLL for (int half = lines / 2, length = 1; half >= 1; half /= 2, length *= 2) {
        vec w[LANES];
        UNROLL for (int i = 0; i < half * length; ++i) {
            w[2 * i] = v[i], w[2 * i + 1] = v[i + half * length];
            deal(w + 2 * i, w + 2 * i + 1);
        }
        UNROLL for (int i = 0; i < lines; ++i) v[i] = w[i];
    }
}

// LANES numbers of each of `lines` lines, `apart` from one to the next, to what lies side by side.
INLINE void deal_block(const TB_S *from, int64_t apart, TB_S *to, int lines) {
    vec v[LANES];
    UNROLL for (int i = 0; i < lines; ++i) v[i] = load(from + i * apart);
    deal_lines(v, lines);
    UNROLL for (int i = 0; i < lines; ++i) *(vec *)(to + i * LANES) = v[i];
}

// Blocks of few lines that are all there is of an axis; how many numbers of each line are copied.
static int64_t deal_all(const TB_S *from, int64_t apart, TB_S *to, int64_t lines, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        if (lines == 2) deal_block(from + i, apart, to + i * lines, 2);
        else if (lines == 4 && LANES > 4) deal_block(from + i, apart, to + i * lines, 4);
        else if (lines == 8 && LANES > 8) deal_block(from + i, apart, to + i * lines, 8);
        else break;
    }
    return i;
}

// Squares of `along` x `across` numbers.
static void copy_squares(const TB_S *from, int64_t line, TB_S *to, int64_t place, int64_t along, int64_t across) {
    for (int64_t q = 0; q < across; q += LANES)
        for (int64_t p = 0; p < along; p += LANES) {
            vec v[LANES];
            UNROLL for (int i = 0; i < LANES; ++i) v[i] = load(from + (q + i) * line + p);
            transpose(v);
            UNROLL for (int i = 0; i < LANES; ++i) *(vec *)(to + (p + i) * place + q) = v[i];
        }
}
#endif

// Numbers [p, along) x [q, across), one after the other.
static void copy_each(const sheet *s, const TB_S *from, TB_S *to, int64_t p, int64_t along, int64_t q, int64_t across) {
    for (int64_t a = p; a < along; ++a)
        for (int64_t b = q; b < across; ++b) to[a * s->y[3] + b * s->y[4]] = from[a * s->x[3] + b * s->x[4]];
}

static void copy_part(const sheet *s, const TB_S *from, TB_S *to, int64_t along, int64_t across) {
    int64_t p = 0, q = 0;
#ifdef TB_PLAIN
    if (s->x[3] == 1 && s->y[4] == 1) {
        if (across == s->n[4] && across < LANES && s->y[3] == across) {
            p = deal_all(from, s->x[4], to, across, along);
            copy_each(s, from, to, p, along, 0, across);
            return;
        }
        p = along / LANES * LANES, q = across / LANES * LANES;
        copy_squares(from, s->x[4], to, s->y[3], p, q);
    }
#endif
    if (s->x[4] == 1 && s->y[4] == 1) {
        for (; p < along; ++p)
            __builtin_memcpy(to + p * s->y[3], from + p * s->x[3], sizeof(TB_S) * (unsigned long)across);
        return;
    }
    copy_each(s, from, to, 0, p, q, across);
    copy_each(s, from, to, p, along, 0, across);
}

// From IN to RESULT. A task: a part of the axes along and across, COPY_LENGTH of each, at one place of the others.
void tb_conv_copy(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                  int64_t end) {
    (void)stride, (void)scalar;
    const sheet s = {size + SIZES, size + SIZES + 5, size + SIZES + 10};
    const int64_t parts = ceil_div(s.n[3], COPY_LENGTH), pieces = ceil_div(s.n[4], COPY_LENGTH);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t q = task % pieces * COPY_LENGTH, p = task / pieces % parts * COPY_LENGTH, at = task / pieces / parts;
        const int64_t c = at % s.n[2], b = at / s.n[2] % s.n[1], a = at / s.n[2] / s.n[1];
        const TB_S *const from = (const TB_S *)TB_PLACE(IN) + a * s.x[0] + b * s.x[1] + c * s.x[2];
        TB_S *const to = (TB_S *)TB_PLACE(RESULT) + a * s.y[0] + b * s.y[1] + c * s.y[2];
        copy_part(&s, from + p * s.x[3] + q * s.x[4], to + p * s.y[3] + q * s.y[4], least(COPY_LENGTH, s.n[3] - p),
                  least(COPY_LENGTH, s.n[4] - q));
    }
}

#endif

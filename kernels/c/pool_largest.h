// SPDX-License-Identifier: Apache-2.0
// pool_largest.h — the way back of the largest of windows that share no pixel: errors go to where their windows say
//
// Part of pool.c. What a row of the gradient takes are zeros, and a number for each window that reaches it, without vectors.

// Whether the largest lie in windows that share no pixel and are few in a row, or too long a row of hardly any images to be
// laid: then it is quicker to ask the windows where their pixel is than each pixel for its window.
TB_FN int are_few_largest(const sizes *g, const plan *p) {
    int apart = TB_OP == 0 && TB_PLAIN;
    for (int axis = 0; axis < 4; ++axis) apart &= g->step[axis] >= g->window[axis];
    const tb_i64 few = g->out[3] == 1 ? 2 * LANES : LANES;
    return apart && (g->out[3] * g->images <= few || (g->images <= 2 && !p->laid));
}

// A row of the gradient of such: zeros, and the errors of the windows whose largest is in the row.
TB_FN void bprop_largest(const sizes *g, const gradient *o) {
    const int joined = o->step == g->images;
    const tb_i64 length = joined ? g->in[3] * g->images : g->images;
    for (tb_i64 w = 0; w < (joined ? 1 : g->in[3]); ++w)
        for (tb_i64 n = 0; n < length; ++n) o->out[w * o->step + n] = (TB_X){0};
    TB_X none;
    for (tb_i64 q = 0, start = -g->pad[3]; q < g->out[3] && o->count; ++q, start += g->step[3]) {
        const TB_X *const e = o->e + o->rows[0].at + q * o->e_step;
        const TB_I *const places = (const TB_I *)o->others + o->rows[0].other + q * o->other_step;
        for (tb_i64 n = 0; n < g->images; ++n) {
            const tb_i64 cell = (tb_i64)places[n] - o->rows[0].number, pixel = start + cell;
            const int here = (tb_u64)cell < (tb_u64)g->window[3] && (tb_u64)pixel < (tb_u64)g->in[3];
            *(here ? o->out + pixel * o->step + n : &none) = e[n];
        }
    }
}

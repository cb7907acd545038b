// SPDX-License-Identifier: Apache-2.0
// gemm_amx.h — the tiles and copies of gemm.c for a processor whose matrix unit multiplies bfloat16 (AMX)
//
// Numbers   A number is the sum of PLANES bfloat16 numbers, each the nearest to what the ones before leave: one for
//           bfloat16, two for float16, three for float32. They hold it exactly: 8 bits each, the last one fewer.
// Products  Of bfloat16 and float16 all pairs of planes; of float32 the six of nine that reach the last bits of a float32:
//           what is left out is about 2^-23 of a product at most. Sums add up in float32, small products first.
// Layout    Blocks of 32 steps of k by 32 rows (columns), plane by plane; of each, two halves of 16 rows (columns) as the
//           unit wants them: rows of a as they are, of b pairs of steps of each column side by side. Rows of bfloat16 in whole blocks stay where
//           they lie.
// Limits    Products and numbers below 2^-126 become zero. Where a sum is not finite, multiply-adds make it anew
//           (`mend`): the parts of an infinite number are not its sum.
// Macros    those of gemm.c, and TB_PLANES

typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t half_words __attribute__((vector_size(32), aligned(2), may_alias));

enum {
    EDGE = 32,               // rows, columns and steps of k of a block
    HALF = 16,
    UNIT = HALF * EDGE * 2,  // bytes of half a block of one plane
    PLANES = TB_PLANES,
};

// How many elements of TB_T hold the copy of n elements.
static inline int64_t packed(int64_t n) { return n * PLANES * 2 / (int64_t)sizeof(TB_T); }

static inline int vectors_of(int64_t columns) { return columns > HALF ? 2 : 1; }
static inline int64_t width_of(const call *g, int64_t columns) { return (void)g, (void)columns, EDGE; }

// The unit ------------------------------------------------------------------------------------------------------------

#define LOAD(R, FROM, STEP) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #R : : "r"(FROM), "r"((int64_t)(STEP)) : "memory")
#define STORE(R, TO, STEP) \
    __asm__ volatile("tilestored %%tmm" #R ", (%0,%1,1)" : : "r"(TO), "r"((int64_t)(STEP)) : "memory")
#define ZERO(R) __asm__ volatile("tilezero %%tmm" #R :)
#define ADD(T, A, B) __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #T :)

// Eight registers of 16 rows of 64 bytes.
static void begin_tiles(void) {
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int r = 0; r < 8; ++r) shape.bytes[r] = 64, shape.rows[r] = HALF;
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}

static void end_tiles(void) { __asm__ volatile("tilerelease" :); }

// Registers 0 to 3 are sums (by rows, then columns), 4 and 5 the halves of a, 6 and 7 those of b.
#define LOAD_A(PLANE) LOAD(4, a + (PLANE) * 2 * UNIT, a_line); LOAD(5, a + (PLANE) * 2 * UNIT + a_half, a_line)
#define LOAD_B(PLANE) LOAD(6, b + (PLANE) * 2 * UNIT, 64); LOAD(7, b + ((PLANE) * 2 + 1) * UNIT, 64)
#define ADD_ALL() ADD(0, 4, 6); ADD(1, 4, 7); ADD(2, 5, 6); ADD(3, 5, 7)

static void run_tile(int vectors, int rows, const work *w) {
    const char *a = (const char *)w->a, *b = (const char *)w->b;
    const int64_t step = w->t_row * (int64_t)sizeof(TB_T);
    const int in_place = w->a_k == 1;  // whole blocks of one plane, rows a_row apart
    const int64_t a_line = in_place ? w->a_row * 2 : 64, a_half = in_place ? HALF * a_line : UNIT;
    const int64_t a_next = in_place ? 64 : 2 * PLANES * UNIT;
    const int whole = w->t_column == 1 && w->columns == EDGE && rows == EDGE;
    (void)vectors;
    if (whole && w->add) {
        LOAD(0, w->t, step); LOAD(1, w->t + HALF, step);
        LOAD(2, w->t + HALF * w->t_row, step); LOAD(3, w->t + HALF * w->t_row + HALF, step);
    } else {
        ZERO(0); ZERO(1); ZERO(2); ZERO(3);
    }
    for (int64_t p = 0; p < w->k; p += EDGE, a += a_next, b += 2 * PLANES * UNIT) {
#if TB_PLANES == 3
        LOAD_A(2); LOAD_B(0); ADD_ALL();
        LOAD_A(1); ADD_ALL();
        LOAD_B(1); ADD_ALL();
        LOAD_A(0); ADD_ALL();
        LOAD_B(2); ADD_ALL();
        LOAD_B(0); ADD_ALL();
#elif TB_PLANES == 2
        LOAD_A(1); LOAD_B(1); ADD_ALL();
        LOAD_B(0); ADD_ALL();
        LOAD_A(0); ADD_ALL();
        LOAD_B(1); ADD_ALL();
#else
        LOAD_A(0); LOAD_B(0); ADD_ALL();
#endif
    }
    if (whole) {
        STORE(0, w->t, step); STORE(1, w->t + HALF, step);
        STORE(2, w->t + HALF * w->t_row, step); STORE(3, w->t + HALF * w->t_row + HALF, step);
        return;
    }
    TB_T sum[EDGE][EDGE];
    STORE(0, &sum[0][0], sizeof sum[0]); STORE(1, &sum[0][HALF], sizeof sum[0]);
    STORE(2, &sum[HALF][0], sizeof sum[0]); STORE(3, &sum[HALF][HALF], sizeof sum[0]);
    put_scattered(&sum[0][0], rows, 2, w);
}

// Copies --------------------------------------------------------------------------------------------------------------

// The planes of 16 numbers, each in the upper half of a word.
static inline __attribute__((always_inline)) void planes_of(const float *x, words *out) {
    vector rest = *(const vector *)x;
    UNROLL for (int p = 0; p < PLANES; ++p) {
        const words bits = (words)rest + (p < PLANES - 1 ? 0x8000 : 0);
        out[p] = bits & 0xFFFF0000;
        rest -= (vector)out[p];
    }
}

// x[i][j] becomes x[j][i], for words: squares of 2, 4, 8 and 16.
static inline __attribute__((always_inline)) void turn(words x[HALF]) {
    const words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    UNROLL for (int step = 1; step < HALF; step *= 2) {
        const words low = lane + ((words)((lane & step) != 0) & (HALF - step)), high = low + step;
        UNROLL for (int i = 0; i < HALF; ++i)
            if (!(i & step)) {
                const words y = x[i], z = x[i | step];
                x[i] = __builtin_shuffle(y, z, low);
                x[i | step] = __builtin_shuffle(y, z, high);
            }
    }
}

// The halves of blocks: from numbers by rows of k or by columns, to rows or, `paired`, to pairs of steps. Planes lie two
// halves apart.
static void half_of_rows(char *to, const float (*x)[EDGE], int paired) {
    words line[PLANES][HALF];
    for (int j = 0; j < HALF; ++j) {
        words low[PLANES], high[PLANES];
        planes_of(x[j], low);
        planes_of(x[j] + HALF, high);
        UNROLL for (int p = 0; p < PLANES; ++p) {
            half_words *const both = (half_words *)&line[p][j];
            both[0] = __builtin_convertvector(low[p] >> 16, half_words);
            both[1] = __builtin_convertvector(high[p] >> 16, half_words);
        }
    }
    for (int p = 0; p < PLANES; ++p) {
        if (paired) turn(line[p]);
        __builtin_memcpy(to + 2 * p * UNIT, line[p], UNIT);
    }
}

static void half_of_columns(char *to, const float (*x)[HALF], int paired) {
    words line[PLANES][HALF];
    for (int i = 0; i < HALF; ++i) {
        words even[PLANES], odd[PLANES];
        planes_of(x[2 * i], even);
        planes_of(x[2 * i + 1], odd);
        UNROLL for (int p = 0; p < PLANES; ++p) line[p][i] = even[p] >> 16 | odd[p];
    }
    for (int p = 0; p < PLANES; ++p) {
        if (!paired) turn(line[p]);
        __builtin_memcpy(to + 2 * p * UNIT, line[p], UNIT);
    }
}

// COPY(NAME, S, WIDE, PAIRED): as in gemm.c; `k` steps of a run of panels, whose last steps and columns are filled with zeros.
#define COPY(NAME, S, WIDE, PAIRED) \
    static inline __attribute__((always_inline)) void NAME##_numbers(float *x, const S *from, int64_t inner, int64_t outer, \
                                                                     int n, int count, int width) { \
        for (int i = 0; i < count; ++i) \
            for (int j = 0; j < n; ++j) x[i * width + j] = WIDE(from[i * outer + j * inner]); \
    } \
    static void NAME##_half(char *to, const S *from, int64_t step_p, int64_t step_j, int k, int n) { \
        float x[HALF * EDGE]; \
        const int whole = k == EDGE && n == HALF, by_columns = step_j == 1; \
        if (!whole) \
            for (int l = 0; l < HALF * EDGE; ++l) x[l] = 0; \
        if (by_columns && whole) \
            NAME##_numbers(x, from, 1, step_p, HALF, EDGE, HALF); \
        else if (by_columns) \
            NAME##_numbers(x, from, 1, step_p, n, k, HALF); \
        else if (step_p == 1 && whole) \
            NAME##_numbers(x, from, 1, step_j, EDGE, HALF, EDGE); \
        else \
            NAME##_numbers(x, from, step_p, step_j, k, n, EDGE); \
        if (by_columns) \
            half_of_columns(to, (const float (*)[HALF])x, PAIRED); \
        else \
            half_of_rows(to, (const float (*)[EDGE])x, PAIRED); \
    } \
    static void NAME(TB_T *to, const S *from, int64_t step_p, int64_t step_j, int64_t k, const run *r) { \
        for (int64_t q = 0; q < r->panels; ++q) \
            for (int64_t p = 0; p < k; p += EDGE) \
                for (int h = 0; h < 2; ++h) { \
                    const int64_t j = q * r->step + h * HALF, n = least(least(HALF, r->columns - j), r->step - h * HALF); \
                    NAME##_half((char *)(to + q * r->apart + packed(p * EDGE)) + h * UNIT, from + p * step_p + j * step_j, \
                                step_p, step_j, (int)least(EDGE, k - p), (int)(n < 0 ? 0 : n)); \
                } \
    }

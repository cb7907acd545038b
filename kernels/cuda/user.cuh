// SPDX-License-Identifier: Apache-2.0
// user.cuh — what the CUDA kernels of user texts share: functions by the type of their arguments, and a reduction that
// keeps the order of its elements
#ifndef TB_USER_CUH
#define TB_USER_CUH

#include "kernel.cuh"

// ---- functions: float for floats, else double ------------------------------------------------------------------------

template <class A, class B> struct tb_user_same { static const bool value = false; };
template <class A> struct tb_user_same<A, A> { static const bool value = true; };

TB_FN float tb_user_away_f32(float x) {
    const float t = tb_trunc_f32(x), d = tb_abs_f32(x - t);
    return d >= 0.5f ? (x < 0 ? t - 1 : t + 1) : t;
}
TB_FN double tb_user_away_f64(double x) {
    const double t = tb_trunc_f64(x), d = tb_abs_f64(x - t);
    return d >= 0.5 ? (x < 0 ? t - 1 : t + 1) : t;
}

#define TB_USER_ONE(NAME, F) \
    TB_FN float tb_user_##NAME(float x) { return F##_f32(x); } \
    template <class A> TB_FN double tb_user_##NAME(A x) { return F##_f64((double)x); }
TB_USER_ONE(exp, tb_exp)
TB_USER_ONE(log, tb_log)
TB_USER_ONE(log1p, tb_log1p)
TB_USER_ONE(expm1, tb_expm1)
TB_USER_ONE(sqrt, tb_sqrt)
TB_USER_ONE(rsqrt, tb_rsqrt)
TB_USER_ONE(floor, tb_floor)
TB_USER_ONE(ceil, tb_ceil)
TB_USER_ONE(tanh, tb_tanh)
TB_USER_ONE(sin, tb_sin)
TB_USER_ONE(cos, tb_cos)
TB_USER_ONE(tan, tb_tan)
TB_USER_ONE(asin, tb_asin)
TB_USER_ONE(acos, tb_acos)
TB_USER_ONE(atan, tb_atan)
TB_USER_ONE(sinh, tb_sinh)
TB_USER_ONE(cosh, tb_cosh)
TB_USER_ONE(erf, tb_erf)
TB_USER_ONE(erfc, tb_erfc)
TB_USER_ONE(fabs, tb_abs)
TB_USER_ONE(round, tb_user_away)

TB_FN float tb_user_abs(float x) { return tb_abs_f32(x); }
TB_FN double tb_user_abs(double x) { return tb_abs_f64(x); }
template <class A> TB_FN auto tb_user_abs(A x) { return x < 0 ? -x : x; }  // of short integers an int, as in C
template <class A> TB_FN int tb_user_isnan(A x) { return x != x; }
template <class A> TB_FN int tb_user_isinf(A x) { return tb_abs_f64((double)x) == TB_INF_F64; }

#define TB_USER_TWO(NAME, F) \
    template <class A, class B> TB_FN auto tb_user_##NAME(A x, B y) { \
        if constexpr (tb_user_same<decltype(x + y), float>::value) return F##_f32((float)x, (float)y); \
        else return F##_f64((double)x, (double)y); \
    }
TB_USER_TWO(pow, tb_pow)
TB_USER_TWO(atan2, tb_atan2)
TB_USER_TWO(fmod, tb_fmod)

#define TB_USER_EXTREME(NAME, F, MORE) \
    template <class A, class B> TB_FN auto tb_user_##NAME(A x, B y) { \
        typedef decltype(x + y) S; \
        if constexpr (tb_user_same<S, float>::value) return F##_f32((float)x, (float)y); \
        else if constexpr (tb_user_same<S, double>::value) return F##_f64((double)x, (double)y); \
        else return (S)x MORE (S)y ? (S)x : (S)y; \
    }
TB_USER_EXTREME(max, tb_max, >)
TB_USER_EXTREME(min, tb_min, <)

template <class A, class B, class C> TB_FN auto tb_user_fma(A x, B y, C z) {
    if constexpr (tb_user_same<decltype(x + y + z), float>::value) return TB_FMA_F32((float)x, (float)y, (float)z);
    else return TB_FMA_F64((double)x, (double)y, (double)z);
}

// ---- a reduction in order ---------------------------------------------------------------------------------------------

#define TB_USER_TILE 1024

TB_FN double *tb_user_tile() {
    __shared__ double places[TB_USER_TILE + TB_WARP];
    return places;
}

// load(from), ..., load(to - 1) as one value by all threads of a block, at most a warp of warps; neighbours are combined
// in their order, four a thread, then in pairs. Thread 0 has the result.
template <class T, class Load, class Both> TB_FN T tb_user_reduce(tb_i64 from, tb_i64 to, Load load, Both both) {
    T *const tile = (T *)tb_user_tile(), *const warps = (T *)(tb_user_tile() + TB_USER_TILE);
    const int thread = (int)threadIdx.x, lane = thread % TB_WARP, each = TB_USER_TILE / (int)blockDim.x;
    T all = T();
    for (tb_i64 base = from; base < to; base += TB_USER_TILE) {
        const int m = (int)(to - base < TB_USER_TILE ? to - base : TB_USER_TILE), width = (m + each - 1) / each;
        for (int e = thread; e < m; e += (int)blockDim.x) tile[e] = load(base + e);
        __syncthreads();
        T value = T();
        if (thread < width) {
            value = tile[thread * each];
            for (int e = thread * each + 1; e < m && e < (thread + 1) * each; ++e) value = both(value, tile[e]);
        }
        for (int step = 1; step < TB_WARP; step *= 2) {
            const T next = tb_shuffle_down(0xFFFFFFFFu, value, step, TB_WARP);
            if (lane % (2 * step) == 0 && thread + step < width) value = both(value, next);
        }
        if (lane == 0) warps[thread / TB_WARP] = value;
        __syncthreads();
        if (thread == 0) {
            for (int warp = 1; warp * TB_WARP < width; ++warp) value = both(value, warps[warp]);
            all = base == from ? value : both(all, value);
        }
    }
    __syncthreads();
    return all;
}

#endif

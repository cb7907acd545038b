// SPDX-License-Identifier: Apache-2.0
// emulator.h — CUDA C++ for a host compiler: what NVRTC declares before a kernel's first line, for gcc and clang
//
// Included in front of the kernels by `backends/emulator.py`, which also rewrites declarations of shared memory to
// EMULATOR_SHARED and EMULATOR_DYNAMIC_SHARED, and adds EMULATOR_KERNEL for each kernel.
//
// Atomics       of CUDA's types alone, as on a device. Reads and writes elsewhere are not torn or reordered here.
// Warps         32 lanes. A lane that is not there, or not in the mask, answers 0xFF bytes.
// __activemask  answers the calling lane alone, the least that CUDA promises.
// Checked       tests/gpu/test_emulator.py
#ifndef TB_EMULATOR_H
#define TB_EMULATOR_H

#include "emulator_runtime.h"

#define TB_EMULATOR 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __restrict__ __restrict
#define EMULATOR_INLINE static inline __attribute__((always_inline))
#define EMULATOR_HERE emulator::Place place = {__builtin_FILE(), __builtin_LINE()}

typedef emulator::Size size_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef long long longlong;
typedef unsigned long long ulonglong;

extern "C" {
int printf(const char *, ...);
void *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
}
#define assert(condition) \
    ((condition) ? (void)0 : emulator_fail({__FILE__, __LINE__}, "assertion failed: %s", #condition))

// ---- built-in variables and vectors ---------------------------------------------------------------------------------

#define EMULATOR_VECTOR(T, name)                                                                 \
    struct name##1 { T x; };                                                                     \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                           \
    struct name##3 { T x, y, z; };                                                               \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };           \
    EMULATOR_INLINE name##1 make_##name##1(T x) { return {x}; }                                  \
    EMULATOR_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; }                          \
    EMULATOR_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                  \
    EMULATOR_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATOR_VECTOR(signed char, char)
EMULATOR_VECTOR(uchar, uchar)
EMULATOR_VECTOR(short, short)
EMULATOR_VECTOR(ushort, ushort)
EMULATOR_VECTOR(int, int)
EMULATOR_VECTOR(uint, uint)
EMULATOR_VECTOR(long, long)
EMULATOR_VECTOR(ulong, ulong)
EMULATOR_VECTOR(longlong, longlong)
EMULATOR_VECTOR(ulonglong, ulonglong)
EMULATOR_VECTOR(float, float)
EMULATOR_VECTOR(double, double)

struct dim3 {
    uint x, y, z;
    dim3(uint x = 1, uint y = 1, uint z = 1) : x(x), y(y), z(z) {}
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

// ---- launches and shared memory -------------------------------------------------------------------------------------

namespace emulator {

static void bind(Binding &binding, void (*run_threads)(const void *)) {
    binding = {run_threads, (Index *)&threadIdx, (Index *)&blockIdx, (Index *)&blockDim, (Index *)&gridDim};
}

template <auto kernel> struct Kernel;

template <class A, void (*kernel)(A)> struct Kernel<kernel> {
    static const Size argument_size = sizeof(A);
    static void run_threads(const void *arguments) {
        while (emulator_next()) kernel(*(const A *)arguments);
    }
};

template <void (*kernel)()> struct Kernel<kernel> {
    static const Size argument_size = 0;
    static void run_threads(const void *) {
        while (emulator_next()) kernel();
    }
};

template <class K> int launch(const Setup *setup, Report *report) {
    static Binding binding;
    bind(binding, K::run_threads);
    return emulator_launch(setup, &binding, report);
}

// The first number of launch bounds.
constexpr uint most_threads(uint threads = 1024, uint = 0, uint = 0) { return threads; }

}  // namespace emulator

#define EMULATOR_KERNEL(name, bounds)                                                                     \
    extern "C" const uint emulator_threads_##name = emulator::most_threads bounds;                        \
    extern "C" const size_t emulator_arguments_##name = emulator::Kernel<name>::argument_size;            \
    extern "C" int emulator_launch_##name(const emulator::Setup *setup, emulator::Report *report) {       \
        return emulator::launch<emulator::Kernel<name>>(setup, report);                                   \
    }

#define EMULATOR_SHARED(attributes, T, name, extents)            \
    typedef T name##_type extents;                               \
    struct attributes name##_aligned { name##_type value; };     \
    static emulator::Site name##_site;                           \
    name##_type &name = *(name##_type *)emulator_shared(&name##_site, sizeof(name##_type), alignof(name##_aligned), #name)

// A type with commas in it, as one argument of a macro.
#define EMULATOR_TYPE(...) __VA_ARGS__
#define EMULATOR_DYNAMIC_SHARED(T, name) T *name = (T *)emulator_dynamic_shared()

// ---- barriers and warps ---------------------------------------------------------------------------------------------

EMULATOR_INLINE void __syncthreads(EMULATOR_HERE) { emulator_barrier(false, place); }
EMULATOR_INLINE int __syncthreads_count(int p, EMULATOR_HERE) { return (int)emulator_barrier(p != 0, place); }
EMULATOR_INLINE int __syncthreads_or(int p, EMULATOR_HERE) { return emulator_barrier(p != 0, place) != 0; }
EMULATOR_INLINE int __syncthreads_and(int p, EMULATOR_HERE) { return emulator_barrier(p == 0, place) == 0; }

EMULATOR_INLINE void __syncwarp(uint mask = ~0u, EMULATOR_HERE) {
    uint nothing = 0;
    emulator_exchange(emulator::SYNC, mask, 0, &nothing, &nothing, 0, place);
}
EMULATOR_INLINE uint __activemask() { return 1u << emulator_lane(); }

namespace emulator {

template <class T> EMULATOR_INLINE T shuffle(uint mask, T value, uint source, Place place) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    T result;
    emulator_exchange(SHUFFLE, mask, (int)source, &value, &result, sizeof value, place);
    return result;
}

}  // namespace emulator

// A source lane outside the segment of `width` lanes is the lane itself, as CUDA says.
template <class T> EMULATOR_INLINE T __shfl_sync(uint mask, T value, int source, int width = 32, EMULATOR_HERE) {
    uint first = emulator_lane() & ~(uint)(width - 1);
    return emulator::shuffle(mask, value, first + ((uint)source & (uint)(width - 1)), place);
}
template <class T> EMULATOR_INLINE T __shfl_up_sync(uint mask, T value, uint delta, int width = 32, EMULATOR_HERE) {
    uint lane = emulator_lane();
    bool inside = (lane & (uint)(width - 1)) >= delta;
    return emulator::shuffle(mask, value, inside ? lane - delta : lane, place);
}
template <class T> EMULATOR_INLINE T __shfl_down_sync(uint mask, T value, uint delta, int width = 32, EMULATOR_HERE) {
    uint lane = emulator_lane();
    bool inside = (lane & (uint)(width - 1)) + delta < (uint)width;
    return emulator::shuffle(mask, value, inside ? lane + delta : lane, place);
}
template <class T> EMULATOR_INLINE T __shfl_xor_sync(uint mask, T value, int bits, int width = 32, EMULATOR_HERE) {
    uint lane = emulator_lane(), source = lane ^ (uint)bits;
    bool inside = source < (lane & ~(uint)(width - 1)) + (uint)width;
    return emulator::shuffle(mask, value, inside ? source : lane, place);
}

EMULATOR_INLINE uint __ballot_sync(uint mask, int p, EMULATOR_HERE) {
    unsigned char vote = p != 0;
    uint result;
    emulator_exchange(emulator::BALLOT, mask, 0, &vote, &result, sizeof vote, place);
    return result;
}
EMULATOR_INLINE int __any_sync(uint mask, int p, EMULATOR_HERE) { return __ballot_sync(mask, p, place) != 0; }
EMULATOR_INLINE int __all_sync(uint mask, int p, EMULATOR_HERE) { return __ballot_sync(mask, !p, place) == 0; }
template <class T> EMULATOR_INLINE uint __match_any_sync(uint mask, T value, EMULATOR_HERE) {
    uint result;
    emulator_exchange(emulator::MATCH, mask, 0, &value, &result, sizeof value, place);
    return result;
}
#define EMULATOR_REDUCE(name, T, expression)                                          \
    EMULATOR_INLINE T __reduce_##name##_sync(uint mask, T value, EMULATOR_HERE) {     \
        T result = value;                                                             \
        bool first = true;                                                            \
        for (int lane = 0; lane < 32; ++lane) {                                       \
            T other = emulator::shuffle(mask, value, (uint)lane, place);              \
            if (!(mask >> lane & 1)) continue;                                        \
            result = first ? other : (expression);                                    \
            first = false;                                                            \
        }                                                                             \
        return result;                                                                \
    }
EMULATOR_REDUCE(add, uint, result + other)
EMULATOR_REDUCE(add, int, result + other)
EMULATOR_REDUCE(max, uint, result > other ? result : other)
EMULATOR_REDUCE(max, int, result > other ? result : other)
EMULATOR_REDUCE(min, uint, result < other ? result : other)
EMULATOR_REDUCE(min, int, result < other ? result : other)
EMULATOR_REDUCE(and, uint, result & other)
EMULATOR_REDUCE(or, uint, result | other)
EMULATOR_REDUCE(xor, uint, result ^ other)

EMULATOR_INLINE void __threadfence() {}
EMULATOR_INLINE void __threadfence_block() {}
EMULATOR_INLINE void __threadfence_system() {}
EMULATOR_INLINE void __nanosleep(uint) {}
EMULATOR_INLINE void __trap(EMULATOR_HERE) { emulator_fail(place, "__trap"); }

// ---- bits and integers ----------------------------------------------------------------------------------------------

namespace emulator {

template <class To, class From> EMULATOR_INLINE To bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}

}  // namespace emulator

EMULATOR_INLINE uint __float_as_uint(float x) { return emulator::bits<uint>(x); }
EMULATOR_INLINE int __float_as_int(float x) { return emulator::bits<int>(x); }
EMULATOR_INLINE float __uint_as_float(uint x) { return emulator::bits<float>(x); }
EMULATOR_INLINE float __int_as_float(int x) { return emulator::bits<float>(x); }
EMULATOR_INLINE longlong __double_as_longlong(double x) { return emulator::bits<longlong>(x); }
EMULATOR_INLINE double __longlong_as_double(longlong x) { return emulator::bits<double>(x); }
EMULATOR_INLINE int __popc(uint x) { return __builtin_popcount(x); }
EMULATOR_INLINE int __popcll(ulonglong x) { return __builtin_popcountll(x); }
EMULATOR_INLINE int __clz(int x) { return x ? __builtin_clz((uint)x) : 32; }
EMULATOR_INLINE int __clzll(longlong x) { return x ? __builtin_clzll((ulonglong)x) : 64; }
EMULATOR_INLINE int __ffs(int x) { return __builtin_ffs(x); }
EMULATOR_INLINE int __ffsll(longlong x) { return __builtin_ffsll(x); }
EMULATOR_INLINE uint __brev(uint x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
    return __builtin_bswap32(x);
}
EMULATOR_INLINE ulonglong __brevll(ulonglong x) { return (ulonglong)__brev((uint)x) << 32 | __brev((uint)(x >> 32)); }
EMULATOR_INLINE uint __umulhi(uint a, uint b) { return (uint)((ulonglong)a * b >> 32); }
EMULATOR_INLINE int __mulhi(int a, int b) { return (int)((longlong)a * b >> 32); }
EMULATOR_INLINE ulonglong __umul64hi(ulonglong a, ulonglong b) { return (ulonglong)((unsigned __int128)a * b >> 64); }
EMULATOR_INLINE uint __funnelshift_l(uint low, uint high, uint n) {
    return (uint)(((ulonglong)high << 32 | low) << (n & 31) >> 32);
}
EMULATOR_INLINE uint __funnelshift_r(uint low, uint high, uint n) {
    return (uint)(((ulonglong)high << 32 | low) >> (n & 31));
}
EMULATOR_INLINE size_t __cvta_generic_to_shared(const void *pointer) { return (size_t)pointer; }

template <class T> EMULATOR_INLINE T __ldg(const T *pointer) { return *pointer; }
template <class T> EMULATOR_INLINE T __ldcs(const T *pointer) { return *pointer; }
template <class T> EMULATOR_INLINE T __ldcg(const T *pointer) { return *pointer; }
template <class T> EMULATOR_INLINE void __stcs(T *pointer, T value) { *pointer = value; }
template <class T> EMULATOR_INLINE void __stcg(T *pointer, T value) { *pointer = value; }

// ---- mathematics ----------------------------------------------------------------------------------------------------

#define EMULATOR_MATH1(name)                                                          \
    extern "C" double name(double);                                                   \
    extern "C" float name##f(float);                                                  \
    EMULATOR_INLINE float name(float x) { return name##f(x); }
#define EMULATOR_MATH2(name)                                                          \
    extern "C" double name(double, double);                                           \
    extern "C" float name##f(float, float);                                           \
    EMULATOR_INLINE float name(float x, float y) { return name##f(x, y); }
EMULATOR_MATH1(acos) EMULATOR_MATH1(acosh) EMULATOR_MATH1(asin) EMULATOR_MATH1(asinh) EMULATOR_MATH1(atan)
EMULATOR_MATH1(atanh) EMULATOR_MATH1(cbrt) EMULATOR_MATH1(ceil) EMULATOR_MATH1(cos) EMULATOR_MATH1(cosh)
EMULATOR_MATH1(erf) EMULATOR_MATH1(erfc) EMULATOR_MATH1(exp) EMULATOR_MATH1(exp2) EMULATOR_MATH1(expm1)
EMULATOR_MATH1(fabs) EMULATOR_MATH1(floor) EMULATOR_MATH1(lgamma) EMULATOR_MATH1(log) EMULATOR_MATH1(log10)
EMULATOR_MATH1(log1p) EMULATOR_MATH1(log2) EMULATOR_MATH1(nearbyint) EMULATOR_MATH1(rint) EMULATOR_MATH1(round)
EMULATOR_MATH1(sin) EMULATOR_MATH1(sinh) EMULATOR_MATH1(sqrt) EMULATOR_MATH1(tan) EMULATOR_MATH1(tanh)
EMULATOR_MATH1(tgamma) EMULATOR_MATH1(trunc)
EMULATOR_MATH2(atan2) EMULATOR_MATH2(copysign) EMULATOR_MATH2(fdim) EMULATOR_MATH2(fmax) EMULATOR_MATH2(fmin)
EMULATOR_MATH2(fmod) EMULATOR_MATH2(hypot) EMULATOR_MATH2(nextafter) EMULATOR_MATH2(pow) EMULATOR_MATH2(remainder)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
EMULATOR_INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
extern "C" double ldexp(double, int);
extern "C" float ldexpf(float, int);

template <class T> EMULATOR_INLINE bool isnan(T x) { return __builtin_isnan(x); }
template <class T> EMULATOR_INLINE bool isinf(T x) { return __builtin_isinf(x); }
template <class T> EMULATOR_INLINE bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> EMULATOR_INLINE bool signbit(T x) { return __builtin_signbit(x); }

#define EMULATOR_MINMAX(T)                                            \
    EMULATOR_INLINE T min(T a, T b) { return a < b ? a : b; }         \
    EMULATOR_INLINE T max(T a, T b) { return a > b ? a : b; }
EMULATOR_MINMAX(int) EMULATOR_MINMAX(uint) EMULATOR_MINMAX(long) EMULATOR_MINMAX(ulong)
EMULATOR_MINMAX(longlong) EMULATOR_MINMAX(ulonglong)
EMULATOR_INLINE float min(float a, float b) { return fminf(a, b); }
EMULATOR_INLINE float max(float a, float b) { return fmaxf(a, b); }
EMULATOR_INLINE double min(double a, double b) { return fmin(a, b); }
EMULATOR_INLINE double max(double a, double b) { return fmax(a, b); }
EMULATOR_INLINE int abs(int x) { return x < 0 ? -x : x; }
EMULATOR_INLINE longlong abs(longlong x) { return x < 0 ? -x : x; }
EMULATOR_INLINE float abs(float x) { return fabsf(x); }
EMULATOR_INLINE double abs(double x) { return fabs(x); }

EMULATOR_INLINE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
EMULATOR_INLINE double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
EMULATOR_INLINE float __fadd_rn(float x, float y) { return x + y; }
EMULATOR_INLINE float __fsub_rn(float x, float y) { return x - y; }
EMULATOR_INLINE float __fmul_rn(float x, float y) { return x * y; }
EMULATOR_INLINE float __fdiv_rn(float x, float y) { return x / y; }
EMULATOR_INLINE float __frcp_rn(float x) { return 1.0f / x; }
EMULATOR_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
EMULATOR_INLINE float __fdividef(float x, float y) { return x / y; }
EMULATOR_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
EMULATOR_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
EMULATOR_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
EMULATOR_INLINE float __expf(float x) { return expf(x); }
EMULATOR_INLINE float __logf(float x) { return logf(x); }
EMULATOR_INLINE int __float2int_rn(float x) { return (int)rintf(x); }
EMULATOR_INLINE int __float2int_rz(float x) { return (int)x; }

// ---- float16 and bfloat16 -------------------------------------------------------------------------------------------

namespace emulator {

EMULATOR_INLINE float from_half(ushort h) {
    uint a = (h & 0x7FFFu) << 13;
    uint magnitude = a >= 0x0F800000u ? a | 0x7F800000u : bits<uint>(bits<float>(a) * 0x1p112f);
    return bits<float>(magnitude | (uint)(h & 0x8000u) << 16);
}

// Below 2^-14 a sum with 1/2 shifts the denormal's bits into place and rounds them; a NaN becomes CUDA's.
EMULATOR_INLINE ushort to_half(float x) {
    uint u = bits<uint>(x), a = u & 0x7FFFFFFFu, sign = u >> 16 & 0x8000u;
    if (a > 0x7F800000u) return 0x7FFF;
    if (a >= 0x47800000u) return (ushort)(sign | 0x7C00u);
    if (a < 0x38800000u) return (ushort)(sign | (bits<uint>(bits<float>(a) + 0.5f) - 0x3F000000u));
    return (ushort)(sign | (((a + 0xFFFu + (a >> 13 & 1u)) >> 13) - (112u << 10)));
}

EMULATOR_INLINE float from_bfloat16(ushort h) { return bits<float>((uint)h << 16); }

EMULATOR_INLINE ushort to_bfloat16(float x) {
    uint u = bits<uint>(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
    return (ushort)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

// A number by way of which float64 becomes a half with one rounding: what float32 cannot hold leaves an odd last bit.
EMULATOR_INLINE float odd(double x) {
    float nearest = (float)x;
    if ((double)nearest == x || __builtin_isnan(x)) return nearest;
    return bits<float>((bits<uint>(nearest) - (__builtin_fabs(nearest) > __builtin_fabs(x))) | 1u);
}

}  // namespace emulator

// Arithmetic rounds once: float32 has more than twice the digits of either.
#define EMULATOR_HALF(H, H2, to, from)                                                        \
    struct H {                                                                                \
        ushort x;                                                                             \
        H() = default;                                                                        \
        H(float value) : x(emulator::to(value)) {}                                            \
        H(double value) : x(emulator::to(emulator::odd(value))) {}                            \
        H(int value) : x(emulator::to(emulator::odd(value))) {}                               \
        operator float() const { return emulator::from(x); }                                  \
        H &operator+=(H b) { return *this = H((float)*this + (float)b); }                     \
        H &operator-=(H b) { return *this = H((float)*this - (float)b); }                     \
        H &operator*=(H b) { return *this = H((float)*this * (float)b); }                     \
        H &operator/=(H b) { return *this = H((float)*this / (float)b); }                     \
    };                                                                                        \
    struct alignas(4) H2 { H x, y; };                                                         \
    EMULATOR_INLINE H operator+(H a, H b) { return a += b; }                                  \
    EMULATOR_INLINE H operator-(H a, H b) { return a -= b; }                                  \
    EMULATOR_INLINE H operator*(H a, H b) { return a *= b; }                                  \
    EMULATOR_INLINE H operator/(H a, H b) { return a /= b; }                                  \
    EMULATOR_INLINE H operator-(H a) { return H(-(float)a); }                                 \
    EMULATOR_INLINE bool operator<(H a, H b) { return (float)a < (float)b; }                  \
    EMULATOR_INLINE bool operator>(H a, H b) { return (float)a > (float)b; }                  \
    EMULATOR_INLINE bool operator<=(H a, H b) { return (float)a <= (float)b; }                \
    EMULATOR_INLINE bool operator>=(H a, H b) { return (float)a >= (float)b; }                \
    EMULATOR_INLINE bool operator==(H a, H b) { return (float)a == (float)b; }                \
    EMULATOR_INLINE bool operator!=(H a, H b) { return (float)a != (float)b; }                \
    EMULATOR_INLINE H __hadd(H a, H b) { return a + b; }                                      \
    EMULATOR_INLINE H __hsub(H a, H b) { return a - b; }                                      \
    EMULATOR_INLINE H __hmul(H a, H b) { return a * b; }                                      \
    EMULATOR_INLINE H2 __hadd2(H2 a, H2 b) { return {a.x + b.x, a.y + b.y}; }                 \
    EMULATOR_INLINE H2 __hmul2(H2 a, H2 b) { return {a.x * b.x, a.y * b.y}; }                 \
    EMULATOR_INLINE float __low2float(H2 a) { return (float)a.x; }                            \
    EMULATOR_INLINE float __high2float(H2 a) { return (float)a.y; }                           \
    EMULATOR_INLINE bool __hisnan(H a) { return __builtin_isnan((float)a); }
EMULATOR_HALF(__half, __half2, to_half, from_half)
EMULATOR_HALF(__nv_bfloat16, __nv_bfloat162, to_bfloat16, from_bfloat16)
#undef EMULATOR_HALF
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

EMULATOR_INLINE float __half2float(__half h) { return h; }
EMULATOR_INLINE __half __float2half(float x) { return x; }
EMULATOR_INLINE __half __float2half_rn(float x) { return x; }
EMULATOR_INLINE __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
EMULATOR_INLINE __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
EMULATOR_INLINE float2 __half22float2(__half2 a) { return {a.x, a.y}; }
EMULATOR_INLINE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
EMULATOR_INLINE ushort __half_as_ushort(__half h) { return h.x; }
EMULATOR_INLINE __half __ushort_as_half(ushort x) { return emulator::bits<__half>(x); }
EMULATOR_INLINE float __bfloat162float(__nv_bfloat16 h) { return h; }
EMULATOR_INLINE __nv_bfloat16 __float2bfloat16(float x) { return x; }
EMULATOR_INLINE __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
EMULATOR_INLINE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
EMULATOR_INLINE float2 __bfloat1622float2(__nv_bfloat162 a) { return {a.x, a.y}; }
EMULATOR_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
EMULATOR_INLINE ushort __bfloat16_as_ushort(__nv_bfloat16 h) { return h.x; }
EMULATOR_INLINE __nv_bfloat16 __ushort_as_bfloat16(ushort x) { return emulator::bits<__nv_bfloat16>(x); }

// ---- atomics --------------------------------------------------------------------------------------------------------

#define EMULATOR_ATOMIC(name, T, expression)                          \
    EMULATOR_INLINE T atomic##name(T *address, T value) {             \
        T old = *address;                                             \
        *address = (T)(expression);                                   \
        return old;                                                   \
    }
#define EMULATOR_ATOMIC_INTEGER(T)                                    \
    EMULATOR_ATOMIC(Max, T, old > value ? old : value)                \
    EMULATOR_ATOMIC(Min, T, old < value ? old : value)                \
    EMULATOR_ATOMIC(And, T, old & value)                              \
    EMULATOR_ATOMIC(Or, T, old | value)                               \
    EMULATOR_ATOMIC(Xor, T, old ^ value)
EMULATOR_ATOMIC_INTEGER(int)
EMULATOR_ATOMIC_INTEGER(uint)
EMULATOR_ATOMIC_INTEGER(ulonglong)
EMULATOR_ATOMIC(Max, longlong, old > value ? old : value)
EMULATOR_ATOMIC(Min, longlong, old < value ? old : value)
EMULATOR_ATOMIC(Add, int, old + value)
EMULATOR_ATOMIC(Add, uint, old + value)
EMULATOR_ATOMIC(Add, ulonglong, old + value)
EMULATOR_ATOMIC(Add, float, old + value)
EMULATOR_ATOMIC(Add, double, old + value)
EMULATOR_ATOMIC(Add, __half, old + value)
EMULATOR_ATOMIC(Add, __nv_bfloat16, old + value)
EMULATOR_ATOMIC(Sub, int, old - value)
EMULATOR_ATOMIC(Sub, uint, old - value)
EMULATOR_ATOMIC(Exch, int, value)
EMULATOR_ATOMIC(Exch, uint, value)
EMULATOR_ATOMIC(Exch, ulonglong, value)
EMULATOR_ATOMIC(Exch, float, value)
EMULATOR_ATOMIC(Inc, uint, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(Dec, uint, old == 0 || old > value ? value : old - 1)
#define EMULATOR_ATOMIC_CAS(T)                                        \
    EMULATOR_INLINE T atomicCAS(T *address, T compare, T value) {     \
        T old = *address;                                             \
        if (old == compare) *address = value;                         \
        return old;                                                   \
    }
EMULATOR_ATOMIC_CAS(int)
EMULATOR_ATOMIC_CAS(uint)
EMULATOR_ATOMIC_CAS(ulonglong)
EMULATOR_ATOMIC_CAS(ushort)

#endif
